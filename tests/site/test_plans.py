"""A plan that a page shows."""

from __future__ import annotations

import pytest
from projects import CONF, INDEX

SCRIPT = """
   import torch
   model = torch.nn.Linear(1000, 10).to("cuda")
   optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
   for _ in range(3):
       model(torch.ones(64, 1000, device="cuda")).sum().backward()
       optimizer.step()
"""
CONF = CONF + 'extensions.append("_ext.programs")\n'


@pytest.mark.slow
def test_a_page_shows_script_command_and_plan(project):
    project.write("conf.py", CONF)
    page = f"Home\n====\n\n.. planned:: --gpu T4 --steps 2\n{SCRIPT}\n"
    project.write("docs/index.rst", page + INDEX)
    build = project.build()
    assert build.status == 0, build.log
    soup = project.page("index")
    script, command, answer = (block.get_text() for block in soup.select("article pre"))
    assert "optimizer.step()" in script
    assert command.strip() == "python -m gpulesson plan --gpu T4 --steps 2 train.py"
    assert answer.startswith("Plan of train.py: 2 steps") and "fits" in answer
