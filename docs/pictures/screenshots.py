"""Screenshots of a report page in headless Chromium, at 1280 and 390 pixels, light and dark.

    pbr-jax sweep quickstart --out DIR
    pbr-jax report DIR --format html --out report.html
    python docs/pictures/screenshots.py report.html

Needs Chromium (`CHROMIUM`, else /usr/bin/chromium) and Pillow, which comes with matplotlib. Each page is
drawn inside a frame of its width, since Chromium's window is at least 500 pixels wide.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
SIZES = {1280: 900, 390: 844}
SCHEMES = {"dark": 0, "light": 1}  # Chromium's numbers of preferred colour schemes
COLOURS, LARGEST = 128, 200_000  # of a picture; bytes


def shot(page: Path, width: int, scheme: str, out: Path) -> None:
    """Draw the top of a page, and keep few colours so that the file is small."""
    height = SIZES[width]
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder, "frame.html")
        frame.write_text(
            f'<body style="margin:0"><iframe src="{page.resolve().as_uri()}" width="{width}" '
            f'height="{height}" style="border:0;display:block"></iframe>'
        )
        picture = Path(folder, "shot.png")
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={folder}/profile", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
            f"--window-size={max(width, 500)},{height}", f"--screenshot={picture}", frame.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        image = Image.open(picture).convert("RGB").crop((0, 0, width, height))
        image.quantize(COLOURS).save(out, optimize=True)
    if out.stat().st_size > LARGEST:
        raise SystemExit(f"{out} has {out.stat().st_size} bytes, more than {LARGEST}: use fewer COLOURS")


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python docs/pictures/screenshots.py report.html")
    for width in SIZES:
        for scheme in SCHEMES:
            shot(Path(sys.argv[1]), width, scheme, HERE / f"report-{width}-{scheme}.png")


if __name__ == "__main__":
    main()
