"""docs/spark-options.md is printed from the table of options."""

from pathlib import Path

from warmlog.spark.options.option_table import describe_options

PAGE = Path(__file__).parents[5] / "docs" / "spark-options.md"


def test_the_page_says_what_the_table_says() -> None:
    assert PAGE.read_text() == f'# Options of format("warmlog") in Spark\n\n{describe_options()}'
