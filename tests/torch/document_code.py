"""The code of a document, as a reader copies it: tests run it with the names that the reader brings.

weights = run_code("docs/pytorch.md", "With DDP", brought)["model"]
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def code_of(page, heading):
    """The blocks of Python below a heading, up to the next heading."""
    text = (ROOT / page).read_text()
    sections = re.split(r"^#+ +(.+?) *$", text, flags=re.MULTILINE)
    titles, bodies = sections[1::2], sections[2::2]
    assert titles.count(heading) == 1, f"{page} has the headings {titles}"
    return re.findall(r"^```python\n(.*?)^```", bodies[titles.index(heading)], re.MULTILINE | re.DOTALL)


def run_code(page, heading, names, block=0):
    """Runs a block with these names; gives them as they are afterwards."""
    code = code_of(page, heading)[block]
    names = {"__name__": "__main__", **names}
    exec(compile(code, f"{page}, {heading}", "exec"), names)
    return names
