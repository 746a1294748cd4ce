"""What the commands do about losses while reading."""

import pytest

from unit.client.cli.printed_batch import batch_of
from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.records import Damage, Parcel
from warmlog.errors import OffsetOutOfRange, UnreadableBatch


def test_damage_is_reported_counted_and_fails_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    damage = Damage()
    damage.check("orders")
    with damage.skipped():
        raise UnreadableBatch("the CRC is wrong", "orders", 0, 3, 5)
    assert capsys.readouterr().err.startswith("warmlog: skipped: orders-0, offsets 3 to 4: the CRC is wrong")
    with pytest.raises(CommandFailed, match="orders: 1 range of offsets cannot be read"):
        damage.check("orders")


def test_a_loss_names_options_of_the_command_line() -> None:
    error = OffsetOutOfRange("a-0: offset 3 is not in the log. Seek to one of these, or set on_out_of_range")
    with pytest.raises(CommandFailed) as caught, Damage().skipped():
        raise error
    assert str(caught.value).startswith("a-0: offset 3 is not in the log. Begin elsewhere: --from earliest")


def test_batches_of_a_partition_become_one_parcel_in_order() -> None:
    first = batch_of(b"a", None, keys=[b"", None], timestamps_ms=[5, -1])
    second = batch_of(b"c", headers=[[("h", None)]], timestamps_ms=[7])
    parcel = Parcel.of([first, second], 4, now_ms=99)
    assert parcel == Parcel([b"a", None, b"c"], [b"", None, None], [5, 99, 7], [[], [], [("h", None)]], 4)
    assert Parcel.of([first], None, now_ms=99).headers is None
