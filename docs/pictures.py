"""Make the pictures of the tutorial anew, by running its code: `python docs/pictures.py`."""

import os
import re
import shutil
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent


def main() -> None:
    """Run the blocks of tutorial.md in an empty folder, and keep what they drew."""
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    (DOCS / "images").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(code, "tutorial.md", "exec"), {"__name__": "__main__"})
        for picture in Path(folder).glob("*.png"):
            shutil.copy(picture, DOCS / "images" / picture.name)
            print(DOCS.name, "images", picture.name, sep="/")
        os.chdir(DOCS)


if __name__ == "__main__":
    main()
