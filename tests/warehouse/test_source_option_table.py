"""The table of the source's options is what the parser accepts, with the parser's defaults."""

from __future__ import annotations

import pytest

from headrace.warehouse.source.errors import OptionError
from headrace.warehouse.source.option_table import OPTIONS, SparkOption
from headrace.warehouse.source.options import parse

NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "page-view"}
WITH_DEFAULT = [option for option in OPTIONS if option.default and ";" not in option.default]


@pytest.mark.parametrize("option", WITH_DEFAULT, ids=lambda option: option.name)
def test_the_default_of_the_table_is_the_parsers(option: SparkOption) -> None:
    given = parse({**NEEDED, option.name: option.default})
    # One task is what a read without the option has, too.
    assert given == parse(NEEDED) or option.name == "minPartitions"


@pytest.mark.parametrize("option", WITH_DEFAULT, ids=lambda option: option.name)
def test_names_may_be_written_in_any_case(option: SparkOption) -> None:
    assert parse({**NEEDED, option.name.upper(): option.default})


def test_starts_by_default() -> None:
    assert parse(NEEDED).start.offsets == "earliest"
    assert parse(NEEDED, streaming=True).start.offsets == "latest"


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.reads == "batch"], ids=lambda option: option.name)
def test_options_of_a_batch_read_are_refused_in_a_stream(option: SparkOption) -> None:
    with pytest.raises(OptionError, match="ending offset not valid"):
        parse({**NEEDED, option.name: "1"}, streaming=True)


def test_an_option_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(OptionError, match="'rowspersecond' is not supported"):
        parse({**NEEDED, "rowsPerSecond": "5"})
