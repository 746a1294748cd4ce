"""The memory budget for requests: nobody overtakes, nothing is lost, and there is always one who gets on."""

from random import Random

from warmlog_broker.network.memory_pool import SMALL_FRAME_BYTES, Claim, MemoryPool, window

MIB = 2**20


def memory_of(shared_bytes: int, *, largest_frame_bytes: int = 1000) -> MemoryPool:
    """A budget with so much for everybody beside the reserved frame."""
    return MemoryPool(shared_bytes + largest_frame_bytes, largest_frame_bytes)


class Claimant:
    """Somebody who receives requests; the names of those who are served stand in `served`."""

    def __init__(self, memory: MemoryPool, name: str, served: list[str]) -> None:
        self.claim = Claim()
        self.name = name
        self._memory = memory
        self._served = served
        self._asks = False

    def ask(self, size_bytes: int, *, is_small: bool = False) -> bool:
        """Whether it is granted at once; if later, its name is added to `served`."""
        frame_bytes = SMALL_FRAME_BYTES if is_small else SMALL_FRAME_BYTES + 1
        self._asks = True
        self._memory.claim(self.claim, size_bytes, frame_bytes=frame_bytes, on_granted=self._granted)
        self._asks = False
        return not self.claim.is_waiting

    def _granted(self) -> None:
        if not self._asks:
            self._served.append(self.name)

    def end(self) -> None:
        self._memory.give_back(self.claim, self.claim.size_bytes)

    def vanish(self) -> None:
        self._memory.forget(self.claim)


def test_what_is_free_can_be_claimed_until_it_is_given_back() -> None:
    memory, claim = memory_of(90), Claim()
    assert memory.try_claim(claim, 60)
    assert not memory.try_claim(claim, 31)
    assert memory.try_claim(claim, 30)
    memory.give_back(claim, 60)
    assert memory.claimed_bytes == claim.size_bytes == 30


def test_who_has_waited_longest_gets_what_is_kept_for_one_request() -> None:
    memory, served = memory_of(90), list[str]()
    stalled = Claimant(memory, "stalled", served)
    first, second = Claimant(memory, "first", served), Claimant(memory, "second", served)
    assert stalled.ask(90)
    assert first.ask(500)
    assert not memory.is_short
    assert not second.ask(50)
    assert memory.is_short
    assert first.ask(300), "it goes on, to its end"
    assert served == []
    first.end()
    assert served == ["second"]
    assert memory.claimed_bytes == 90 + 50


def test_nobody_overtakes_who_waits() -> None:
    memory, served = memory_of(90), list[str]()
    holders = [Claimant(memory, "holder", served), Claimant(memory, "oldest", served)]
    assert holders[0].ask(80)
    assert holders[1].ask(500)
    large, next_one = Claimant(memory, "large", served), Claimant(memory, "next", served)
    assert not large.ask(60)
    assert not next_one.ask(5)
    assert not memory.try_claim(Claim(), 1)
    holders[0].end()
    assert served == ["large", "next"]


def test_what_becomes_free_goes_to_small_requests_first() -> None:
    memory, served = memory_of(90), list[str]()
    holders = [Claimant(memory, "holder", served), Claimant(memory, "oldest", served)]
    assert holders[0].ask(90)
    assert holders[1].ask(500)
    assert not Claimant(memory, "large", served).ask(60)
    small = [Claimant(memory, f"small {number}", served) for number in range(4)]
    assert [asker.ask(10, is_small=True) for asker in small] == [False] * 4
    holders[0].end()
    assert served == ["small 0", "small 1", "small 2", "small 3"]
    small[1].end()
    assert served[4:] == ["large"]


def test_a_large_request_gets_the_reserved_frame_although_small_ones_come_again_and_again() -> None:
    memory, served = memory_of(90), list[str]()
    holders = [Claimant(memory, "holder", served), Claimant(memory, "oldest", served)]
    assert holders[0].ask(90)
    assert holders[1].ask(500)
    assert not Claimant(memory, "large", served).ask(60)
    for number in range(3):
        assert not Claimant(memory, f"small {number}", served).ask(60, is_small=True)
    holders[1].end()
    assert served == ["large"]


def test_small_requests_do_not_wait_for_good_where_there_is_no_part_for_them() -> None:
    memory, served = MemoryPool(1000, 1000), list[str]()
    large = [Claimant(memory, "large", served) for _ in range(2)]
    assert large[0].ask(900)
    assert not Claimant(memory, "small", served).ask(10, is_small=True)
    for number in range(10):
        asking, ending = large[1 - number % 2], large[number % 2]
        assert not asking.ask(900)
        ending.end()
        if "small" in served:
            return
    raise AssertionError("large requests overtake it again and again")


def test_who_is_gone_does_not_hold_up_the_others() -> None:
    memory, served = memory_of(90), list[str]()
    holder, oldest = Claimant(memory, "holder", served), Claimant(memory, "oldest", served)
    assert holder.ask(90)
    assert oldest.ask(500)
    gone, here = Claimant(memory, "gone", served), Claimant(memory, "here", served)
    assert not gone.ask(80)
    assert not here.ask(10)
    gone.vanish()
    assert served == []
    oldest.vanish()
    assert served == ["here"]
    here.vanish()
    holder.vanish()
    Claimant(memory, "never came", served).vanish()
    assert memory.claimed_bytes == 0
    assert not memory.is_short


def test_with_room_for_one_request_they_come_one_after_another() -> None:
    memory, served = MemoryPool(1000, 1000), list[str]()
    askers = [Claimant(memory, str(number), served) for number in range(3)]
    assert [asker.ask(1000) for asker in askers] == [True, False, False]
    askers[0].end()
    askers[1].end()
    assert served == ["1", "2"]


def test_of_a_large_frame_as_much_again_as_has_come_may_come() -> None:
    assert window(1000, 8) == 1000
    assert window(100 * MIB, 8) == SMALL_FRAME_BYTES
    assert window(100 * MIB, 30 * MIB) == 60 * MIB
    assert window(100 * MIB, 70 * MIB) == 100 * MIB


def test_requests_that_come_bit_by_bit_all_become_whole_in_the_end() -> None:
    """Any order of frames of any size, each claimed as it comes: no two ever wait for each other for good."""
    luck = Random(5)
    for _ in range(60):
        memory = MemoryPool(300, 100)
        granted = dict.fromkeys(range(12), 0)
        sizes = {number: luck.randint(1, 100) for number in granted}
        claims = {number: Claim() for number in granted}
        wanted = dict(granted)

        def grant(number: int, wanted: dict[int, int] = wanted, granted: dict[int, int] = granted) -> None:
            granted[number] = wanted[number]

        left = set(granted)
        for _ in range(5000):
            able = [number for number in left if not claims[number].is_waiting]
            if not able:
                break
            number = luck.choice(able)
            if granted[number] == sizes[number]:
                memory.give_back(claims[number], claims[number].size_bytes)
                left.discard(number)
                continue
            step = luck.randint(1, sizes[number] - granted[number])
            wanted[number] = granted[number] + step
            frame_bytes = SMALL_FRAME_BYTES + (sizes[number] >= 20)
            memory.claim(claims[number], step, frame_bytes=frame_bytes, on_granted=lambda number=number: grant(number))
            assert memory.claimed_bytes <= memory.limit_bytes
        assert not left
        assert memory.claimed_bytes == 0
