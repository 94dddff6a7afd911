"""`make bench`: every benchmark in turn; exits 1 if any budget is missed."""

import subprocess
import sys
from pathlib import Path

SCRIPTS = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("_"))

if __name__ == "__main__":
    codes = []
    for script in SCRIPTS:
        print(f"\n{script.stem.replace('_', ' ')}", flush=True)
        codes.append(subprocess.run([sys.executable, str(script)], check=False).returncode)
    sys.exit(max(codes))
