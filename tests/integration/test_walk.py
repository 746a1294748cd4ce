"""How many files a batch and a commit go through: what a reader of the code has to open."""

import pytest

from walk import COMMITTED, FETCHED, LIMITS, PRODUCED, Way, shortest_ways


@pytest.fixture(scope="module")
def ways() -> dict[str, Way]:
    return shortest_ways()


@pytest.mark.parametrize("name", [PRODUCED, FETCHED, COMMITTED])
def test_a_way_enters_no_more_files_and_folders_than_it_may(ways: dict[str, Way], name: str) -> None:
    entered, limit = ways[name].entered, LIMITS[name]

    assert 0 < entered.files <= limit.files, f"`make walk` shows the {entered.files} files of {name}"
    assert 0 < entered.folders <= limit.folders, f"`make walk` shows the {entered.folders} folders of {name}"
