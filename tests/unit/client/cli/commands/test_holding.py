"""What commands say of the transactions that hold readers back."""

from warmlog import TransactionDescription
from warmlog.cli.commands.topic.open_transactions import Held, held_text


def test_a_transactional_id_with_control_characters_cannot_write_to_the_terminal() -> None:
    transaction = TransactionDescription("a\n\x1b[2J", "ongoing", 1, 0, 60_000, -1, [], [], None)
    assert held_text(Held("t", 0, 7, [transaction])).startswith(r"t-0 from offset 7 on: a\n\x1b[2J (ongoing, open for ")
