"""The README as the package index shows it, without the files that it links to: hatchling calls this."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"!?\[([^]]*)\]\((?!https?:|#)[^)]*\)")


class CustomMetadataHook(MetadataHookInterface):
    """Leaves the words of links whose addresses are files of this folder."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": LINK.sub(r"\1", text)}
