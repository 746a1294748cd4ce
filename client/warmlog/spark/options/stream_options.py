"""The options of one stream, parsed."""

from collections.abc import Mapping
from dataclasses import dataclass

from warmlog.points import LATEST, Point, PointKind
from warmlog.ranges.read_settings import ReadSettings, Remedies
from warmlog.ranges.resolve import ReadBounds
from warmlog.spark.options.option_table import Use
from warmlog.spark.options.options import parse_size_bytes, take_options
from warmlog.spark.options.read_options import (
    LOSS_REMEDY,
    GroupUse,
    PlanLimits,
    Retries,
    TopicChoice,
    bounds_of,
    group_use,
    plan_limits,
    planning_retries,
    read_settings,
    starting_points,
    topic_choice,
)

_CONTINUE = f"{LOSS_REMEDY}, or start the query with a new checkpoint and startingOffsets"
_REMEDIES = Remedies(
    when_lost=_CONTINUE,
    when_cut="start the query with a new checkpoint and startingOffsets",
    when_recreated=_CONTINUE,
    when_damaged=f"{LOSS_REMEDY}, or start the query after the damaged batch with a new checkpoint and startingOffsets",
)


@dataclass(frozen=True)
class Admission:
    """Bounds of a micro-batch; None for no bound."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    """How long `min_offsets` may delay a micro-batch."""
    max_bytes: int | None = None


@dataclass(frozen=True)
class StreamOptions:
    """The options of one stream, checked."""

    bootstrap: tuple[str, ...]
    topics: TopicChoice
    bounds: ReadBounds
    is_start_counted: bool = False
    """Whether the start counts back from the end or from now, and so is another one each time."""
    admission: Admission = Admission()
    limits: PlanLimits = PlanLimits()  # noqa: RUF009 - frozen
    reading: ReadSettings = ReadSettings()  # noqa: RUF009 - frozen
    retries: Retries = Retries()  # noqa: RUF009 - frozen
    group: GroupUse | None = None


def parse_stream_options(given: Mapping[str, str], now_ms: int) -> StreamOptions:
    """Parse the options of a stream; relative times count from `now_ms`. InvalidConfig for the first bad one.

    A stream starts at the latest offset by default.
    """
    options = take_options(given, Use.STREAM)
    starting = starting_points(options, now_ms, default=LATEST)
    is_tail = isinstance(starting, Point) and starting.kind is PointKind.TAIL
    return StreamOptions(
        bootstrap=options.addresses("bootstrap.servers"),
        topics=topic_choice(options),
        bounds=bounds_of(options, starting, LATEST),
        is_start_counted=is_tail or starting != starting_points(options, now_ms + 1, default=LATEST),
        admission=Admission(
            max_offsets=options.number("maxOffsetsPerTrigger"),
            min_offsets=options.number("minOffsetsPerTrigger"),
            max_delay_ms=options.duration_ms("maxTriggerDelay"),
            max_bytes=options.parsed("maxBytesPerTrigger", parse_size_bytes),
        ),
        limits=plan_limits(options),
        reading=read_settings(options, _REMEDIES),
        retries=planning_retries(options),
        group=group_use(options),
    )
