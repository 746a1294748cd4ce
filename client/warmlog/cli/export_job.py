"""`warmlog spark-export` as a program for spark-submit: `spark-submit …/warmlog/cli/export_job.py TOPIC PATH …`."""

import sys

from warmlog.cli import main

if __name__ == "__main__":
    sys.argv[:1] = ["warmlog", "spark-export"]
    main()
