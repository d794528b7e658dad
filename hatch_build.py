"""The README as the package index shows it, without the files that it links to: hatchling calls this."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"!\[[^]]*\]\((?!https?:)[^)]*\)|\[([^]]*)\]\((?!https?:|#)[^)]*\)")


class CustomMetadataHook(MetadataHookInterface):
    """Leaves out pictures that are files of this folder; of links to its files, leaves the words."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": LINK.sub(lambda link: link[1] or "", text),
        }
