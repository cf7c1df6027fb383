"""Files of rows, ``.parquet`` and ``.csv``, read some rows at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import numpy as np

from acls.errors import InputError, require
from acls.predictions.columns import Field, Layout
from acls.predictions.files import Array, DataFile, text_dict

META_KEY = b"acls"


class ParquetFile(DataFile):
    """A parquet file; a row of scores is a list, a fixed-size list, or one column a class."""

    def _open_files(self, stack: ExitStack) -> None:
        arrow, parquet = require("pyarrow", extra="io"), require("pyarrow.parquet", extra="io")
        self._errors = (arrow.ArrowException, OSError)
        try:
            # Buffered: otherwise a whole column of a row group is read at once, and that can be the whole file.
            self._file = stack.enter_context(parquet.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False))
        except self._errors as error:
            raise InputError(f"{self.path} is not a whole parquet file: {error}") from error
        schema = self._file.schema_arrow
        self.fields = {name: Field(None, str(schema.field(name).type)) for name in dict.fromkeys(schema.names)}
        self.meta = text_dict((schema.metadata or {}).get(META_KEY, b"{}").decode())

    def n_rows(self, layout: Layout) -> int:
        return int(self._file.metadata.num_rows)

    def n_cells(self, layout: Layout) -> int:
        refs = layout.main
        names = {ref.name for ref in refs}
        groups = self._file.metadata
        if not groups.num_row_groups or not groups.num_rows:
            return len(refs)
        first = groups.row_group(0)
        values = sum(
            first.column(i).num_values
            for i in range(first.num_columns)
            if first.column(i).path_in_schema.split(".")[0] in names
        )
        return max(1, int(values) // max(1, int(first.num_rows)))

    def blocks(self, layout: Layout, rows: int) -> Iterator[dict[str, list[Array]]]:
        done = 0
        batches = self._file.iter_batches(batch_size=rows, columns=layout.names, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except self._errors as error:
                raise InputError(f"{self.path} cannot be read after row {done}: {error}") from error
            if batch is None:
                return
            if batch.num_rows:
                yield {
                    role: [self._values(batch.column(ref.name), ref.name, done) for ref in refs]
                    for role, refs in layout.roles.items()
                }
            done += batch.num_rows

    def _values(self, column: Any, name: str, first_row: int) -> Array:
        types = require("pyarrow", extra="io").types
        kind = column.type
        if column.null_count:
            row = first_row + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(f"{self.path}: row {row}: {name!r} is null")
        if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(lengths != lengths[0])
            if wrong.size:
                raise InputError(
                    f"{self.path}: row {first_row + wrong[0]}: {name!r} has {lengths[wrong[0]]} classes, "
                    f"but {lengths[0]} in the rows before"
                )
            return self._values(column.flatten(), name, first_row).reshape(len(column), int(lengths[0]))
        if types.is_dictionary(kind):
            column = column.dictionary_decode()
        return np.asarray(column.to_numpy(zero_copy_only=False))


class CsvFile(DataFile):
    """A text file with a header line; the separator is the one of ``, ; tab`` that the header has most of."""

    def _open_files(self, stack: ExitStack) -> None:
        file = stack.enter_context(open(self.path, newline="", encoding="utf-8-sig"))  # noqa: SIM115
        try:
            line = file.readline()
            separator = max(",;\t", key=line.count)
            header = next(csv.reader([line], delimiter=separator), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{self.path} is not a text file with a header line: {error}") from error
        if not header:
            raise InputError(f"{self.path} is empty; a header line with the names of the columns is called for")
        self._file, self._separator = file, separator
        self._header = [name.strip() for name in header]
        self.fields = {name: Field() for name in self._header}

    def n_rows(self, layout: Layout) -> None:
        return None

    def n_cells(self, layout: Layout) -> int:
        return 8 * len(self._header)  # every column is read, and a number as text takes about eight times its room

    def blocks(self, layout: Layout, rows: int) -> Iterator[dict[str, list[Array]]]:
        done = 0
        while lines := list(islice(self._file, rows)):
            try:
                block, n = self._parse(lines, layout, done)
            except (UnicodeDecodeError, csv.Error) as error:
                raise InputError(f"{self.path}: after row {done}: {error}") from error
            if n:
                yield block
            done += n

    def _parse(self, lines: list[str], layout: Layout, done: int) -> tuple[dict[str, list[Array]], int]:
        """The columns of each role in some lines, and how many rows that is."""
        scores = [self._header.index(ref.name) for ref in layout.roles.get("scores", ())]
        others = {role: refs[0].name for role, refs in layout.roles.items() if role != "scores"}
        plain = not any('"' in line for line in lines)
        if plain:
            records = [line.rstrip("\r\n").split(self._separator) for line in lines if line.strip()]
        else:
            records = self._records(lines)
        for at, record in enumerate(records):
            if len(record) != len(self._header):
                raise InputError(
                    f"{self.path}: row {done + at}: {len(record)} values for {len(self._header)} columns: "
                    "the file is truncated or a value holds the separator"
                )
        block = {role: [self._column(records, name, done, role)] for role, name in others.items()}
        if not scores:
            return block, len(records)
        try:
            if not plain:
                raise ValueError
            table = np.loadtxt(lines, delimiter=self._separator, usecols=scores, comments=None, ndmin=2)
            block["scores"] = list(table.T)
        except ValueError:  # the slow way finds the cell to blame
            block["scores"] = [self._column(records, self._header[at], done, "scores") for at in scores]
        return block, len(records)

    def _records(self, lines: list[str]) -> list[list[str]]:
        """Rows with quotes, which may hold line breaks: the last one may need more lines of the file."""
        reader = csv.reader(chain(lines, self._file), delimiter=self._separator)
        records = []
        for record in reader:
            if record:
                records.append(record)
            if reader.line_num >= len(lines):
                break
        return records

    def _column(self, records: list[list[str]], name: str, first_row: int, role: str) -> Array:
        cells = list(map(itemgetter(self._header.index(name)), records))
        if role in ("group", "image"):  # text even where it looks like numbers: a later row may not
            return np.array(cells)
        try:
            return np.array(list(map(float, cells)))
        except ValueError:
            at = next(at for at, cell in enumerate(cells) if not _is_number(cell))
            what = f"is {cells[at]!r}, which is not a number" if cells[at].strip() else "is empty"
            raise InputError(f"{self.path}: row {first_row + at}: {name!r} {what}") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
