"""Check all hand-ins of one exercise: python check_hand_ins.py 04 folder"""

import json
import subprocess
import sys
from pathlib import Path

number, folder = sys.argv[1], Path(sys.argv[2])
for file in sorted(folder.glob("*.py")):
    command = [sys.executable, "-m", "gpulesson", "check", number, file, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if done.returncode == 2:
        sys.exit(done.stderr)
    file.with_suffix(".json").write_text(done.stdout, encoding="utf-8")
    findings = json.loads(done.stdout)["findings"]
    failures = [finding for finding in findings if finding["severity"] == "failure"]
    listed = ", ".join(f"{each['kind']} (line {each['line']})" for each in failures)
    print(f"{file.stem:<24} {'passed' if done.returncode == 0 else listed}")
