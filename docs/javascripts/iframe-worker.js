/* Browsers start no worker from a disk. Where the site is opened as a file, the search runs in a hidden frame instead,
   behind an object with a worker's methods. */
if (location.protocol === "file:") {
  const answers = (window.__answers = []);
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((done) => (this.start = done));
      answers.push((data) => this.dispatchEvent(new MessageEvent("message", { data })));
      document.body.append(frame);
      const page = frame.contentDocument;
      page.open();
      page.write(
        `<body><script>window.postMessage = parent.__answers[${answers.length - 1}];</script>` +
          `<script src="${url}"></script>`
      );
      page.close();
      this.frame = frame.contentWindow;
      const script = page.querySelector("script[src]");
      script.addEventListener("load", () => this.start());
    }
    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
