"""Takes the README's pictures of the page that `./dev demo` writes; needs chromium and the packages of `./dev test`.

    ./dev demo && build/venv/bin/python docs/images/screenshots.py build/demo/report.html

report.png is the first screen; pictures.png, in dark colours, the chain of the gravest finding and the heat map below it.
"""

import pathlib
import shutil
import sys

from playwright.sync_api import sync_playwright

HERE = pathlib.Path(__file__).parent
WIDTH = 1200  # pixels


def main(page_file):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        address = pathlib.Path(page_file).resolve().as_uri()
        page = browser.new_page(viewport={"width": WIDTH, "height": 780}, color_scheme="light")
        page.goto(address)
        page.screenshot(path=HERE / "report.png")
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="dark", reduced_motion="reduce")
        page.goto(address)
        boxes = [page.locator(f"#{name}").bounding_box() for name in ("chains", "heat-map")]
        top, bottom = boxes[0]["y"], boxes[1]["y"] + boxes[1]["height"]
        left = min(box["x"] for box in boxes)
        clip = {"x": left - 16, "y": top, "width": WIDTH - left, "height": bottom - top}
        page.screenshot(path=HERE / "pictures.png", full_page=True, clip=clip)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
