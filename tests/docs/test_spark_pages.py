"""The pages with Spark share a session, which takes long to start."""

from pathlib import Path

from docs.running import WITH_SPARK, run_pages


def test_the_blocks_of_the_pages_with_spark_run_twice_in_a_row(tmp_path: Path) -> None:
    assert [page.name for page in WITH_SPARK] == ["README.md", "spark.md"]
    run_pages(WITH_SPARK, tmp_path)
