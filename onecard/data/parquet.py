"""Documents of a parquet file: one column, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onecard.data.document import END, Bad, Read, bounded
from onecard.data.extras import extra
from onecard.data.sources import SourceFile, unreadable

_BUFFER_BYTES = 2**20
_ROWS = 256  # read at a time


def parquet_documents(file: SourceFile, *, start: int, column: str) -> Iterator[Read]:
    """The texts of one column, row by row; a row group is never held whole."""
    assert file.path is not None, "fetched before it is read"
    parquet = extra("pyarrow.parquet", purpose="reading parquet")
    arrow = extra("pyarrow", purpose="reading parquet")
    size_bytes = file.size_bytes or 0
    try:
        table = parquet.ParquetFile(file.path, memory_map=False, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except (arrow.ArrowException, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise unreadable(str(file.path), problem) from problem
        yield Read(Bad.DAMAGED, END, size_bytes)
        return
    with table:
        rows = table.metadata.num_rows
        place = 0
        if column not in table.schema_arrow.names:
            for place in range(start, rows):
                yield Read(Bad.NO_TEXT, place + 1, size_bytes)
            return
        for group in range(table.num_row_groups):
            length = table.metadata.row_group(group).num_rows
            if place + length <= start:
                place += length
                continue
            try:
                for batch in table.iter_batches(_ROWS, row_groups=[group], columns=[column], use_threads=False):
                    values = batch.column(0)
                    skipped = min(len(values), max(0, start - place))
                    place += skipped
                    for text in _utf8(values.slice(skipped), arrow):
                        place += 1
                        yield Read(text, place, size_bytes * place // rows)
            except (arrow.ArrowException, OSError) as problem:
                if isinstance(problem, OSError) and problem.errno is not None:
                    raise unreadable(str(file.path), problem) from problem  # the disk failed, the data is fine
                yield Read(Bad.DAMAGED, END, size_bytes)
                return


def parquet_columns(file: SourceFile) -> tuple[str, ...]:
    """The columns of a parquet file; empty if it cannot be read, or is not here."""
    try:
        return tuple(extra("pyarrow.parquet", purpose="reading parquet").read_schema(file.path).names)
    except (OSError, TypeError, ValueError):  # ArrowInvalid is a ValueError
        return ()


def _utf8(values: Any, arrow: Any) -> list[bytes | Bad]:
    """The texts of a column as bytes, whatever its text type."""
    if arrow.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if arrow.types.is_string(values.type) or arrow.types.is_large_string(values.type):
        values = values.cast(arrow.large_binary())  # not decoded here: a bad text must not stop the others
    if not (arrow.types.is_binary(values.type) or arrow.types.is_large_binary(values.type)):
        return [Bad.NO_TEXT] * len(values)
    return [Bad.NO_TEXT if value is None else bounded(value) for value in values.to_pylist()]
