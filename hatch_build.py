"""The README as the package index shows it, without the files that it links to: hatchling calls this."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*")
LINK = re.compile(r"\[([^]]*)\]\((?!https?:|#)[^)]*\)")


class CustomMetadataHook(MetadataHookInterface):
    """Takes pictures away, and leaves the words of links, where their addresses are files of this folder."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        text = LINK.sub(r"\1", PICTURE.sub("", text))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
