"""Python imports this by itself when the folder stands first on a process' PYTHONPATH: see `fault_injection`."""

import os
import sys

if os.environ.get("HEADRACE_INJECT"):
    sys.path.append(os.path.dirname(__file__))  # behind everything: it lends a name, and hides none
    import fault_injection

    fault_injection.install(os.environ["HEADRACE_INJECT"])
