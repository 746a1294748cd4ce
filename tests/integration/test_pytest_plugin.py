"""The fixtures of `pytest_warmlog`, used by a project of its own in a process of its own."""

import pytest

pytest_plugins = ["pytester"]

STRICT = """
[pytest]
filterwarnings = error
asyncio_default_fixture_loop_scope = function
addopts = --strict-markers --strict-config -p no:cacheprovider
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A directory whose tests fail for any warning."""
    pytester.makefile(".ini", pytest=STRICT)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "no:xdist", *arguments)


def test_a_record_goes_through_the_fixtures(project: pytest.Pytester) -> None:
    project.makepyfile("""
        def test_a_record(warmlog_topic, warmlog_producer, warmlog_consumer):
            metadata = warmlog_producer.send(warmlog_topic, b"one", key=b"k").result()
            assert metadata.offset == 0
            assert [each.value for each in warmlog_consumer.records(until="latest")] == [b"one"]

        def test_the_topic(warmlog_admin, warmlog_topic):
            assert warmlog_topic.startswith("test-the-topic-")
            assert warmlog_admin.describe_topic(warmlog_topic).name == warmlog_topic
    """)
    run(project).assert_outcomes(passed=2)


def test_each_test_has_a_topic_of_its_own_on_the_broker_of_the_session(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pytest

        SEEN = set()

        @pytest.mark.parametrize("odd", ["a b/c", "\N{SNOWMAN}", "x" * 400])
        def test_topic(odd, warmlog_topic, warmlog_broker, warmlog_admin):
            SEEN.add((warmlog_topic, warmlog_broker.address))
            assert warmlog_topic in warmlog_admin.topic_names()

        def test_what_was_seen():
            assert len(SEEN) == 3
            assert len({address for _, address in SEEN}) == 1
    """)
    run(project).assert_outcomes(passed=4)


def test_a_test_with_a_loop_uses_the_asyncio_clients(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pytest
        import warmlog

        @pytest.mark.asyncio
        async def test_async(warmlog_broker, warmlog_topic):
            async with warmlog.Producer(warmlog_broker.address) as producer:
                assert (await producer.send(warmlog_topic, b"x")).offset == 0
    """)
    run(project).assert_outcomes(passed=1)


def test_a_project_gives_the_broker_its_settings(project: pytest.Pytester) -> None:
    project.makeconftest("""
        import pytest
        import warmlog.testing

        @pytest.fixture(scope="session")
        def warmlog_broker():
            with warmlog.testing.embedded(num_partitions=3) as broker:
                yield broker
    """)
    project.makepyfile("""
        def test_partitions(warmlog_admin, warmlog_topic):
            assert len(warmlog_admin.describe_topic(warmlog_topic).partitions) == 3
    """)
    run(project).assert_outcomes(passed=1)


def test_nothing_of_the_broker_is_left_after_the_session(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import atexit
        import threading

        def test_broker(warmlog_broker, warmlog_topic, warmlog_producer):
            atexit.register(lambda: print("left:", warmlog_broker._data_dir, threading.enumerate()[1:]))
    """)
    result = run(project)
    result.assert_outcomes(passed=1)
    assert result.outlines[-1] == "left: None []"
    assert not result.errlines


def test_a_project_that_uses_no_fixture_imports_nothing_of_warmlog(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import sys

        def test_nothing(request):
            assert request.config.pluginmanager.has_plugin("warmlog")
            named = {name.partition(".")[0] for name in sys.modules}
            assert not {name for name in named if name.startswith("warmlog")}
            assert not named & {"uvloop", "msgspec"}
    """)
    run(project).assert_outcomes(passed=1)


def test_the_fixtures_are_listed_with_what_they_are(project: pytest.Pytester) -> None:
    lines = run(project, "--fixtures").stdout.str()
    for name in ("broker", "admin", "topic", "producer", "consumer"):
        assert f"warmlog_{name}" in lines
    assert "A broker in this process" in lines
