"""The former path of `warmlog/cli/export_job.py`: runs that, with a warning, for one release."""

import runpy
import warnings

if __name__ == "__main__":
    warnings.warn("warmlog/spark/export_job.py has moved to warmlog/cli/export_job.py", FutureWarning, stacklevel=1)
    runpy.run_module("warmlog.cli.export_job", run_name="__main__")
