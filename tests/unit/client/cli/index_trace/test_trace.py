"""`warmlog index trace`: the pages that both searches visit, as text, as JSON and as a picture."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kafka_sample import SAMPLE
from warmlog.cli.app import build_program
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import OpenFiles

FLIGHTS = SAMPLE / "flights-0"


def trace(*arguments: object) -> Result:
    return CliRunner().invoke(build_program(), ["index", "trace", *map(str, arguments)])


def searches(*arguments: object) -> dict[str, dict[str, list[int]]]:
    done = trace(*arguments, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    return {each["name"]: each for each in json.loads(done.stdout)["searches"]}


@pytest.mark.parametrize(
    ("pages", "classic", "warm"),
    [(13, [0, 6, 9, 11, 12], [10, 12, 11]), (14, [0, 7, 10, 12, 13], [11, 13, 12])],
)
def test_the_well_known_example_is_seen_without_data(pages: int, classic: list[int], warm: list[int]) -> None:
    found = searches("--entries", pages * 512)
    assert found["classic"]["pages"] == classic
    assert found["warm/cold"]["pages"] == warm


def test_pages_are_drawn_as_a_row_of_cells_with_the_order_of_visits() -> None:
    lines = trace("--entries", 6656).stdout.splitlines()
    assert lines[0] == "an index: 6,656 entries of 8 bytes, 13 pages of 4096"
    assert lines[3] == "classic: pages 0, 6, 9, 11, 12; 14 slots read, found in slot 6655"
    assert lines[6] == "  visit  | 1 |   |   |   |   |   | 2 |   |   | 3 |   | 4 | 5 |"
    assert lines[-3] == "  visit  |   |   |   |   |   |   |   |   |   |   | 1 | 3 | 2 |"
    assert lines[-1].split() == ["warm", "~~~", "~~~", "~~~"]


def test_a_large_index_is_drawn_without_the_pages_that_nobody_visits() -> None:
    lines = trace("--entries", 1_310_720).stdout.splitlines()
    assert max(map(len, lines[4:])) <= 120
    assert "2557 2558 2559" in lines[8]


def test_the_segment_that_holds_the_target_is_looked_into() -> None:
    for target, segment in ((5468, 5468), (11638, 5468), (11639, 11639), (10**6, 11639)):
        assert f"{segment:020d}.index" in trace(FLIGHTS, "--target", target).stdout
    assert "00000000000000005468.index" in trace(FLIGHTS, "--target", 13_000, "--segment", 5468).stdout
    with OffsetIndex(FLIGHTS / f"{5468:020d}.index", 5468, open_files=OpenFiles(), is_writable=False) as index:
        for slot in (0, 1, 100, index.entries - 1):
            found = searches(FLIGHTS, "--target", index.entry(slot).offset)
            assert [each["lower"] for each in found.values()] == [slot, slot]


def test_without_a_target_the_last_entry_is_looked_for() -> None:
    with TimeIndex(FLIGHTS / f"{11639:020d}.timeindex", 11639, open_files=OpenFiles(), is_writable=False) as index:
        expected = f"looking for timestamp {index.last_entry.timestamp_ms}\n"
    assert expected in trace(FLIGHTS, "--index", "time").stdout
    assert "looking for offset 1" in trace(FLIGHTS).stdout


def test_files_that_nobody_may_write_are_traced_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.index"
    with OffsetIndex(path, 0, open_files=OpenFiles(), max_index_bytes=80_000) as index:
        for offset in range(1, 5000):
            index.append(offset, offset)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert searches(tmp_path, "--target", 4_999)["warm/cold"]["lower"] == 4998
    finally:
        tmp_path.chmod(0o755)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_the_picture_is_a_png_with_a_row_for_each_search(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for entries in (1, 6656, 1_310_720):
        path = tmp_path / f"{entries}.png"
        done = trace("--entries", entries, "--png", path)
        assert (done.exit_code, done.stderr) == (0, f"warmlog: the picture is in {path}\n")
        with image.open(path) as picture:
            assert picture.format == "PNG"
            colors = {color for _, color in picture.getcolors(1 << 20)}
        assert {(0x2F, 0x6F, 0xB5), (0xC2, 0x41, 0x0C), (0xFF, 0xE8, 0xC2)} <= colors


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL.ImageDraw", None)
    done = trace("--entries", 10, "--png", tmp_path / "x.png")
    assert done.exit_code == 1
    assert "pip install 'pillow>=10.1'" in done.stderr
    assert done.stdout == ""


def test_misuse_ends_with_2_and_failure_with_1(tmp_path: Path) -> None:
    assert trace().exit_code == 2
    assert trace(FLIGHTS, "--entries", 5).exit_code == 2
    assert trace(tmp_path / "missing").exit_code == 2
    assert trace("--entries", 0).exit_code == 2
    for arguments, message in (
        ((tmp_path,), "has no .index file"),
        ((FLIGHTS, "--segment", 7), "no segment 7"),
    ):
        done = trace(*arguments)
        assert done.exit_code == 1
        assert message in done.stderr
    (tmp_path / f"{0:020d}.log").touch()
    done = trace(tmp_path)
    assert (done.exit_code, "has no .index file yet" in done.stderr) == (1, True)
    (tmp_path / f"{3:020d}.index").touch()
    done = trace(tmp_path)
    assert (done.exit_code, "has no entries" in done.stderr) == (1, True)


@pytest.mark.parametrize("target", [-1, 2**63, 10**23])
def test_a_target_that_no_log_can_have_is_misuse(target: int) -> None:
    for arguments in ((FLIGHTS,), (FLIGHTS, "--index", "time"), ("--entries", 10)):
        assert trace(*arguments, "--target", target).exit_code == 2
        assert trace(*arguments, "--target", 2**63 - 1).exit_code == 0


def test_a_picture_that_cannot_be_written_is_told_before_anything_is_printed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing" / "x.png", tmp_path / "file" / "x.png", tmp_path):
        done = trace("--entries", 10, "--png", path)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "--png" in done.stderr


@pytest.mark.parametrize("padding", [0, 8 * 1024])
def test_of_a_segment_that_was_just_rolled_the_one_before_is_traced(tmp_path: Path, padding: int) -> None:
    with OffsetIndex(tmp_path / f"{0:020d}.index", 0, open_files=OpenFiles(), max_index_bytes=80_000) as index:
        for offset in range(1, 50):
            index.append(offset, offset)
    rolled = tmp_path / f"{50:020d}.index"
    rolled.write_bytes(bytes(padding))
    for arguments in ((), ("--target", 60)):
        done = trace(tmp_path, *arguments)
        assert done.exit_code == 0
        assert f"{0:020d}.index: 49 entries" in done.stdout
        assert done.stderr == f"warmlog: {rolled} has no entries yet: using the newest index that has some\n"
    done = trace(tmp_path, "--segment", 50)
    assert (done.exit_code, "has no entries" in done.stderr) == (1, True)
