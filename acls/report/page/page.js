"use strict";
// Everything that comes from files is written as text, never as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const view = { subject: 0, state: 0, bins: 15, scheme: "width", other: null, classRow: 0 };

  // --- making elements ------------------------------------------------------------------------------------------------

  function make(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }
  function svg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  }
  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  const percent = (x, digits = 1) => (100 * x).toFixed(digits) + " %";
  const whole = (x) => Math.round(x).toLocaleString("en");

  // --- tables that sort -----------------------------------------------------------------------------------------------

  const numeric = (text) => {
    const number = parseFloat(text.replace(/,/g, ""));
    return Number.isNaN(number) ? null : number;
  };
  function compare(a, b) {
    if (a === "" || b === "") return 0;
    const [x, y] = [numeric(a), numeric(b)];
    return x !== null && y !== null ? x - y : a.localeCompare(b, "en", { numeric: true });
  }
  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((one) => one.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const text = (row) => row.cells[column].textContent;
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          if ((text(a) === "") !== (text(b) === "")) return text(a) === "" ? 1 : -1; // what is not known comes last
          return (down ? -1 : 1) * compare(text(a), text(b));
        });
        table.tBodies[0].append(...rows);
      });
    });
  }
  function rebuild(table, names, titles, rows) {
    const head = make("tr", {}, ...titles.map((title, i) => make("th", { scope: "col", ...(i < names ? { class: "name" } : {}) }, title)));
    const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, i) => make("td", i < names ? { class: "name" } : {}, cell))));
    table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
    sortable(table);
    return body;
  }

  // --- tips, by pointer and by keyboard -------------------------------------------------------------------------------

  function tip(text, element) {
    const box = $("tip");
    box.textContent = text;
    box.hidden = false;
    const at = element.getBoundingClientRect();
    const left = Math.min(at.left + at.width / 2 + 12, innerWidth - box.offsetWidth - 8);
    const top = Math.max(at.top - box.offsetHeight - 8, 4);
    box.style.left = Math.max(left, 4) + scrollX + "px";
    box.style.top = top + scrollY + "px";
  }
  const noTip = () => { $("tip").hidden = true; };
  addEventListener("keydown", (event) => { if (event.key === "Escape") noTip(); });

  // Slots are shown one by one: the first takes part in tabbing, arrow keys move among them.
  function slots(group, items) {
    items.forEach((item, i) => {
      item.setAttribute("tabindex", i === 0 ? "0" : "-1");
      item.setAttribute("role", "img");
      item.addEventListener("pointerenter", () => tip(item.dataset.tip, item));
      item.addEventListener("pointerleave", noTip);
      item.addEventListener("focus", () => tip(item.dataset.tip, item));
      item.addEventListener("blur", noTip);
      item.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
        const next = event.key === "Home" ? items[0] : event.key === "End" ? items.at(-1) : items[i + step];
        if (!next) return;
        event.preventDefault();
        items.forEach((one) => one.setAttribute("tabindex", "-1"));
        next.setAttribute("tabindex", "0");
        next.focus();
      });
    });
    group.append(...items);
  }

  // --- reliability ----------------------------------------------------------------------------------------------------

  function wilson(share, n) {
    const z2 = 1.959964 ** 2;
    const middle = (share + z2 / (2 * n)) / (1 + z2 / n);
    const half = (Math.sqrt(z2) / (1 + z2 / n)) * Math.sqrt((share * (1 - share)) / n + z2 / (4 * n * n));
    return [Math.max(0, Math.min(middle - half, share)), Math.min(1, Math.max(middle + half, share))];
  }
  // Rows of the bins that hold samples, from sums by bin.
  function rowsOf(sums) {
    const rows = [];
    sums.count.forEach((count, b) => {
      if (!count) return;
      const accuracy = Math.min(1, sums.right[b] / count);
      const [low, high] = wilson(accuracy, count);
      rows.push({ lower: sums.edge[b], upper: sums.edge[b + 1], count, confidence: sums.confidence[b] / count, accuracy, low, high });
    });
    return rows;
  }
  function eceOf(rows) {
    const n = rows.reduce((sum, row) => sum + row.count, 0);
    return rows.reduce((sum, row) => sum + row.count * Math.abs(row.confidence - row.accuracy), 0) / Math.max(n, 1);
  }
  // What chance alone would give: the mean of |residual| of a calibrated model, as if normal, bin by bin.
  function floorOf(rows) {
    const n = rows.reduce((sum, row) => sum + row.count, 0);
    const spread = (row) => Math.sqrt((2 / Math.PI) * row.count * row.confidence * (1 - row.confidence));
    return rows.reduce((sum, row) => sum + spread(row), 0) / Math.max(n, 1);
  }
  const side = 400, left = 46, top = 10, strip = 74, between = 16;
  const X = (x) => left + x * side;
  const Y = (y) => top + (1 - y) * side;

  function frame(height, xTitle, yTitle) {
    const picture = svg("svg", { viewBox: `0 0 ${left + side + 14} ${height}`, role: "group" });
    const hatch = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "hatch" }));
    picture.append(svg("defs", {}, hatch));
    for (let i = 0; i <= 5; i++) {
      picture.append(svg("text", { x: left - 8, y: Y(i / 5) + 4, "text-anchor": "end" }, (i / 5).toFixed(1)));
      picture.append(svg("line", { class: "axis", x1: left, x2: X(1), y1: Y(i / 5), y2: Y(i / 5) }));
    }
    picture.append(svg("text", { transform: `translate(12 ${top + side / 2}) rotate(-90)`, "text-anchor": "middle" }, yTitle));
    picture.append(svg("text", { x: X(0.5), y: height - 4, "text-anchor": "middle" }, xTitle));
    return picture;
  }
  function xTicks(picture, y) {
    for (let i = 0; i <= 5; i++) picture.append(svg("text", { x: X(i / 5), y, "text-anchor": "middle" }, (i / 5).toFixed(1)));
  }
  function describe(row, what) {
    return `${what} ${row.lower.toFixed(3)} to ${row.upper.toFixed(3)}\nn = ${whole(row.count)}\n` +
      `mean ${what} ${percent(row.confidence, 2)}\naccuracy ${percent(row.accuracy, 2)} (${percent(row.low)} to ${percent(row.high)})\n` +
      `gap ${row.confidence >= row.accuracy ? "+" : "−"}${percent(Math.abs(row.confidence - row.accuracy), 2)}`;
  }
  function box(x1, x2, y1, y2, name) {
    return svg("rect", { class: name, x: X(x1), width: Math.max((x2 - x1) * side, 0.8), y: Y(Math.max(y1, y2)), height: Math.abs(y2 - y1) * side });
  }
  function dotted(picture, rows, name) {
    const points = rows.map((row) => `${X(row.confidence).toFixed(1)},${Y(row.accuracy).toFixed(1)}`).join(" ");
    picture.append(svg("polyline", { class: name, points }));
    rows.forEach((row) => picture.append(svg("circle", { class: "dot", cx: X(row.confidence), cy: Y(row.accuracy), r: 3.2 })));
  }
  function whisker(row) {
    return svg("line", { class: "whisker", x1: X(row.confidence), x2: X(row.confidence), y1: Y(row.low), y2: Y(row.high) });
  }
  const sumsOf = (state) => state.binned && state.binned[view.scheme][view.bins];

  function drawReliability() {
    const state = current();
    const sums = sumsOf(state);
    $("reliability").hidden = false;
    drawNumbers(state, sums ? rowsOf(sums) : null);
    if (!sums) {
      $("diagram").replaceChildren(make("p", {}, "The outputs of this network are not available, only its metrics."));
      return;
    }
    const rows = rowsOf(sums);
    const height = top + side + between + strip + 40;
    const picture = frame(height, "confidence", "accuracy");
    picture.setAttribute("aria-label", `Reliability diagram of ${titleOf(view.subject, view.state)}, ${rows.length} bins`);
    const under = top + side + between + strip;
    const most = Math.log10(1 + Math.max(...rows.map((row) => row.count)));
    rows.forEach((row) => {
      picture.append(box(row.lower, row.upper, 0, row.accuracy, "bar"), box(row.lower, row.upper, row.accuracy, row.confidence, "gap"));
      const tall = (strip * Math.log10(1 + row.count)) / most;
      picture.append(svg("rect", { class: "count", x: X(row.lower) + 0.5, width: Math.max((row.upper - row.lower) * side - 1, 0.8), y: under - tall, height: tall }));
    });
    rows.forEach((row) => picture.append(whisker(row)));
    picture.append(svg("line", { class: "ideal", x1: X(0), y1: Y(0), x2: X(1), y2: Y(1) }));
    const n = rows.reduce((sum, row) => sum + row.count, 0);
    const mean = (name) => rows.reduce((sum, row) => sum + row.count * row[name], 0) / n;
    for (const [name, kind] of [["confidence", "mark"], ["accuracy", "mark true"]])
      picture.append(svg("line", { class: kind, x1: X(mean(name)), x2: X(mean(name)), y1: under - strip, y2: under }));
    picture.append(svg("text", { x: left - 8, y: under - strip / 2 + 4, "text-anchor": "end" }, "n"));
    xTicks(picture, under + 15);
    if (view.other) {
      const second = sumsOf(data.subjects[view.other[0]].states[view.other[1]]);
      if (second) dotted(picture, rowsOf(second).filter((row) => row.count >= 10), "second");
    }
    slots(picture, rows.map((row) => {
      const hit = svg("rect", { class: "hit", x: X(row.lower), width: Math.max((row.upper - row.lower) * side, 5), y: top, height: under - top });
      const text = describe(row, "confidence");
      const slot = svg("g", { class: "slot", "aria-label": text.replaceAll("\n", ", ") }, hit);
      slot.dataset.tip = text;
      return slot;
    }));
    $("diagram").replaceChildren(picture);
    rebuild($("bin-table"), 0, ["from", "to", "n", "confidence %", "accuracy %", "95 % interval", "gap %"], rows.map((row) => [
      row.lower.toFixed(4), row.upper.toFixed(4), whole(row.count), (100 * row.confidence).toFixed(2), (100 * row.accuracy).toFixed(2),
      `${(100 * row.low).toFixed(2)} – ${(100 * row.high).toFixed(2)}`, (100 * (row.confidence - row.accuracy)).toFixed(2)]));
  }

  function worthOf(name, [value, low, high, floor, debiased]) {
    const [, scale, digits] = data.metrics[name];
    const show = (x) => (scale * x).toFixed(digits);
    const parts = [low === null ? "" : `${show(low)} – ${show(high)}`, debiased === null || debiased === value ? "" : `debiased ${show(debiased)}`,
      floor === null ? "" : `floor ${show(floor)}`];
    return parts.filter((part) => part).join(", ");
  }
  function drawNumbers(state, rows) {
    const lines = [];
    const usual = rows && view.bins === 15 && view.scheme === "width" && state.numbers.ece; // the ECE is listed once
    if (rows) {
      const kind = view.scheme === "width" ? "equal width" : "equal mass";
      const worth = usual ? worthOf("ece", state.numbers.ece) : `noise floor ≈ ${percent(floorOf(rows), 2)}`;
      lines.push([`ECE, ${view.bins} bins of ${kind}`, percent(usual ? usual[0] : eceOf(rows), 2), worth]);
      if (view.other) {
        const [s, t] = view.other;
        const second = sumsOf(data.subjects[s].states[t]);
        if (second) lines.push([`ECE of ${titleOf(s, t)}`, percent(eceOf(rowsOf(second)), 2), ""]);
      }
    }
    for (const [name, numbers] of Object.entries(state.numbers)) {
      const known = data.metrics[name];
      if (!known || numbers[0] === null || (usual && name === "ece")) continue;
      const [title, scale, digits] = known;
      lines.push([title, (scale * numbers[0]).toFixed(digits), worthOf(name, numbers)]);
    }
    if (state.temperature !== null) lines.push(["fitted temperature", state.temperature.toFixed(3), ""]);
    lines.push(["n", whole(state.n), ""]);
    const body = lines.map(([title, ...cells]) => make("tr", {}, make("th", { scope: "row" }, title), ...cells.map((cell) => make("td", {}, cell))));
    $("numbers").tBodies[0].replaceChildren(...body);
    $("numbers").caption.textContent = titleOf(view.subject, view.state);
    const pixels = data.subjects[view.subject].byImage ? "Intervals are over images; noise floors assume independent pixels, so they are too low. " : "";
    $("note").textContent = pixels + (state.note ? `${state.name}: ${state.note}.` : "");
  }

  // --- classes --------------------------------------------------------------------------------------------------------

  const className = (k) => data.subjects[view.subject].names[k] ?? String(k);

  function drawClasses() {
    const classes = current().classes;
    $("classes").hidden = classes.length === 0;
    if (!classes.length) return;
    view.classRow = Math.min(view.classRow, classes.length - 1);
    const n = (one) => one.count.reduce((sum, count) => sum + count, 0);
    const rows = rebuild($("class-table"), 1, ["class", "classwise ECE %", "true share %", "mean probability %", "n"], classes.map((one) => [
      className(one.class), (100 * one.ece).toFixed(3), ((100 * one.labels) / n(one)).toFixed(2), ((100 * one.expected) / n(one)).toFixed(2), whole(one.labels)]));
    rows.forEach((row, i) => {
      const button = make("button", { type: "button" }, row.cells[0].textContent);
      row.cells[0].replaceChildren(button);
      button.addEventListener("click", () => { view.classRow = i; show(); });
    });
    const show = () => {
      rows.forEach((row, i) => row.classList.toggle("on", i === view.classRow));
      drawClass(classes[view.classRow]);
    };
    show();
  }
  function drawClass(one) {
    const bins = one.count.length;
    const rows = rowsOf({ ...one, edge: Array.from({ length: bins + 1 }, (_, b) => b / bins) });
    const height = top + side + 40;
    const picture = frame(height, "probability of the class", "frequency of the class");
    picture.setAttribute("aria-label", `Reliability of class ${className(one.class)}`);
    xTicks(picture, top + side + 17);
    picture.append(svg("line", { class: "ideal", x1: X(0), y1: Y(0), x2: X(1), y2: Y(1) }));
    rows.forEach((row) => picture.append(whisker(row)));
    dotted(picture, rows, "line on");
    slots(picture, rows.map((row) => {
      const slot = svg("g", { class: "slot" }, svg("rect", { class: "hit", x: X(row.lower), width: (row.upper - row.lower) * side, y: top, height: side }));
      slot.dataset.tip = describe(row, "probability").replace("accuracy", "frequency");
      slot.setAttribute("aria-label", slot.dataset.tip.replaceAll("\n", ", "));
      return slot;
    }));
    $("class-diagram").replaceChildren(picture);
    $("class-caption").textContent = `${className(one.class)}: classwise ECE ${percent(one.ece, 3)}`;
  }

  // --- mistakes -------------------------------------------------------------------------------------------------------

  function drawMistakes() {
    const subject = data.subjects[view.subject];
    $("mistakes").hidden = subject.mistakes.length === 0;
    $("mistakes-hint").textContent = subject.byImage ? "One pixel per image, the most confident wrong one, before calibration." : "Before calibration.";
    $("cards").replaceChildren(...subject.mistakes.map((one) => {
      const where = one.image === null ? `row ${one.row}` : `image ${one.image}`;
      const text = `predicted ${className(one.predicted)}, true class ${className(one.label)}`;
      const card = make("li", {});
      if (one.picture !== null) card.append(make("img", { src: data.pictures[one.picture], alt: `${where}: ${text}` }));
      card.append(make("b", {}, percent(one.confidence, 2)), ` ${text} `, make("span", { class: "hint" }, `(${where})`));
      return card;
    }));
  }

  // --- training -------------------------------------------------------------------------------------------------------

  const CURVES = [
    ["ECE, validation", "val/ece"], ["accuracy, validation (dashed: training)", "val/accuracy", "train/accuracy"],
    ["NLL, validation", "val/nll"], ["training loss", "train/loss"], ["temperature that fits", "val/temperature"],
    ["logit gap", "val/logit_gap"], ["share where the regulariser acts", "val/regulariser_active"]];

  function drawTraining() {
    const own = data.subjects[view.subject].curves;
    $("training").hidden = !own.epoch;
    if (!own.epoch) return;
    const others = data.subjects.filter((one, i) => i !== view.subject && one.curves.epoch).map((one) => one.curves);
    $("charts").replaceChildren(...CURVES.filter(([, name]) => own[name]).map(([title, name, also]) => chart(title, own, others, name, also)));
  }
  function chart(title, own, others, name, also) {
    const [w, h, l, b] = [300, 170, 44, 24];
    const all = [own, ...others].filter((curves) => curves[name]);
    const values = all.flatMap((curves) => curves[name]).concat(also ? own[also] : []).filter((value) => value !== null);
    // A first epoch may be far off; the axis ends where nine in ten values do, twice over.
    const sorted = [...values].sort((a, c) => a - c);
    const high = Math.min(sorted.at(-1), 2 * sorted[Math.floor(0.9 * (sorted.length - 1))] || sorted.at(-1)) || 1;
    const low = Math.min(0, sorted[0]);
    const last = Math.max(...all.map((curves) => curves.epoch.at(-1)), 2);
    const x = (epoch) => l + ((epoch - 1) / (last - 1)) * (w - l - 8);
    const y = (value) => 8 + (1 - (Math.min(value, high) - low) / (high - low || 1)) * (h - b - 8);
    const path = (curves, key) => {
      let pen = "M";
      return curves.epoch.map((epoch, i) => {
        if (curves[key][i] === null) { pen = "M"; return ""; }
        const step = `${pen}${x(epoch).toFixed(1)} ${y(curves[key][i]).toFixed(1)}`;
        pen = "L";
        return step;
      }).join("");
    };
    const picture = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", tabindex: 0, "aria-label": `${title}, by epoch; at the end ${own[name].at(-1)}` });
    picture.append(svg("path", { class: "axis", d: `M${l} 8V${h - b}H${w - 8}` }));
    for (const value of [low, (low + high) / 2, high])
      picture.append(svg("text", { x: l - 5, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(2)))));
    for (const epoch of [1, last]) picture.append(svg("text", { x: x(epoch), y: h - b + 15, "text-anchor": "middle" }, String(epoch)));
    picture.append(svg("text", { x: (l + w) / 2, y: h - b + 15, "text-anchor": "middle" }, "epoch"));
    others.filter((curves) => curves[name]).forEach((curves) => picture.append(svg("path", { class: "line", d: path(curves, name) })));
    if (also && own[also]) picture.append(svg("path", { class: "line train", d: path(own, also) }));
    picture.append(svg("path", { class: "line on", d: path(own, name) }));
    const cursor = svg("line", { class: "cursor", y1: 8, y2: h - b, visibility: "hidden" });
    picture.append(cursor);
    const point = (i) => {
      cursor.setAttribute("visibility", "visible");
      cursor.setAttribute("x1", x(own.epoch[i]));
      cursor.setAttribute("x2", x(own.epoch[i]));
      const rest = also && own[also] ? `\ntraining ${own[also][i]}` : "";
      tip(`epoch ${own.epoch[i]}\n${title.split(" (")[0]} ${own[name][i]}${rest}`, cursor);
    };
    let at = own.epoch.length - 1;
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const epoch = 1 + ((((event.clientX - box.left) / box.width) * w - l) / (w - l - 8)) * (last - 1);
      at = own.epoch.reduce((best, e, i) => (Math.abs(e - epoch) < Math.abs(own.epoch[best] - epoch) ? i : best), 0);
      point(at);
    });
    const leave = () => { cursor.setAttribute("visibility", "hidden"); noTip(); };
    picture.addEventListener("pointerleave", leave);
    picture.addEventListener("blur", leave);
    picture.addEventListener("focus", () => point(at));
    picture.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      at = Math.max(0, Math.min(own.epoch.length - 1, at + step));
      point(at);
    });
    return make("div", {}, make("h3", {}, title), picture);
  }

  // --- where it comes from --------------------------------------------------------------------------------------------

  function drawOrigin() {
    const subject = data.subjects[view.subject];
    $("origin").hidden = false;
    $("source").textContent = subject.source;
    const pretty = (value) => JSON.stringify(value, null, 2);
    const texts = { settings: subject.settings, environment: Object.keys(subject.environment).length ? pretty(subject.environment) : "",
      protocol: Object.keys(current().protocol).length ? pretty(current().protocol) : "" };
    for (const [id, text] of Object.entries(texts)) {
      $(id).textContent = text;
      $(id).closest("details").hidden = !text;
    }
  }

  // --- choosing -------------------------------------------------------------------------------------------------------

  const current = () => data.subjects[view.subject].states[view.state];
  const stateName = (state) => (state.name === data.asIs ? "as it is" : `after ${state.name}`);
  function titleOf(s, t) {
    const subject = data.subjects[s];
    return subject.method + (subject.seed === null ? "" : `, seed ${subject.seed}`) + `, ${stateName(subject.states[t])}`;
  }
  const option = (value, text, on) => { const one = make("option", { value }, text); one.selected = on; return one; };

  function offer() {
    const subject = data.subjects[view.subject];
    $("method").replaceChildren(...data.methods.map((method, i) => option(i, method, method === subject.method)));
    const seeds = data.subjects.map((one, i) => [one, i]).filter(([one]) => one.method === subject.method);
    $("seed").replaceChildren(...seeds.map(([one, i], k) => option(i, one.seed === null ? `${k + 1}` : one.seed, i === view.subject)));
    $("seed-label").hidden = seeds.length < 2;
    $("state").replaceChildren(...subject.states.map((state, t) => option(t, stateName(state), t === view.state)));
    const own = [view.subject, view.state].join();
    if (view.other && view.other.join() === own) view.other = null;
    const pairs = data.subjects.flatMap((one, s) => one.states.map((state, t) => [s, t]).filter(([, t]) => one.states[t].binned))
      .filter((pair) => pair.join() !== own);
    const chosen = view.other && view.other.join();
    $("other").replaceChildren(option("", "nothing", !chosen), ...pairs.map((pair) => option(pair.join(), titleOf(...pair), pair.join() === chosen)));
  }
  function draw() {
    noTip();
    drawReliability();
    drawClasses();
    drawMistakes();
    drawTraining();
    drawOrigin();
  }
  function choose(change) {
    Object.assign(view, change);
    view.state = Math.min(view.state, data.subjects[view.subject].states.length - 1);
    offer();
    draw();
  }
  $("method").addEventListener("change", (event) => {
    const method = data.methods[Number(event.target.value)];
    const seed = data.subjects[view.subject].seed;
    const own = data.subjects.map((one, i) => [one, i]).filter(([one]) => one.method === method);
    choose({ subject: (own.find(([one]) => one.seed === seed) ?? own[0])[1] });
  });
  $("seed").addEventListener("change", (event) => choose({ subject: Number(event.target.value) }));
  $("state").addEventListener("change", (event) => choose({ state: Number(event.target.value) }));
  $("bins").addEventListener("change", (event) => { view.bins = Number(event.target.value); drawReliability(); });
  $("other").addEventListener("change", (event) => {
    view.other = event.target.value ? event.target.value.split(",").map(Number) : null;
    drawReliability();
  });
  document.querySelectorAll("input[name=scheme]").forEach((radio) =>
    radio.addEventListener("change", () => { view.scheme = radio.value; drawReliability(); }));
  $("chosen").addEventListener("submit", (event) => event.preventDefault());
  $("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));

  document.querySelectorAll("#results table").forEach(sortable);
  $("bins").replaceChildren(...data.bins.map((bins) => option(bins, bins, bins === view.bins)));
  $("chosen").hidden = false;
  offer();
  draw();
})();
