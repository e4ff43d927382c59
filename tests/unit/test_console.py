"""The console's files: which are served, and under which headers."""

import httpx
import pytest
from fastapi import FastAPI

from api import console, errors


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    dist = tmp_path / "dist"
    (dist / "assets").mkdir(parents=True)
    (dist / "index.html").write_text("<!doctype html>the page")
    (dist / "icon.svg").write_text("<svg/>")
    (dist / "assets" / "index-abc.js").write_text("run()")
    (tmp_path / "secret.txt").write_text("outside")
    monkeypatch.setattr(console, "BUNDLE", dist)
    return dist


@pytest.fixture
def browser(bundle):
    app = FastAPI()
    app.include_router(console.router)
    errors.install(app)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


@pytest.mark.parametrize("path", ["", "runs", "runs/01a2?tab=graph&task=a", "workflows/a.b", "no/such/page"])
async def test_every_address_of_the_console_is_its_page(browser, path):
    response = await browser.get(f"/console/{path}")
    assert (response.status_code, response.text) == (200, "<!doctype html>the page")
    assert response.headers["cache-control"] == "no-cache"


async def test_a_hashed_file_is_kept_for_ever(browser):
    response = await browser.get("/console/assets/index-abc.js")
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert response.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    ("accepts", "is_packed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("", False), ("br", False), ("gzip;q=0, br", False), ("x-gzip", False)],
)
async def test_a_text_is_packed_for_who_can_read_that(browser, accepts, is_packed):
    response = await browser.get("/console/assets/index-abc.js", headers={"Accept-Encoding": accepts})
    assert response.text == "run()"
    assert ("gzip" in response.headers.get("content-encoding", "")) == is_packed
    assert response.headers["vary"] == "Accept-Encoding"
    assert response.headers["content-type"].startswith("text/javascript")
    assert "content-security-policy" in response.headers
    assert "content-encoding" not in (await browser.get("/console/")).headers


async def test_a_missing_file_is_not_found_and_no_page(browser):
    response = await browser.get("/console/assets/index-old.js")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


async def test_nothing_runs_that_does_not_come_from_here(browser):
    policy = (await browser.get("/console/")).headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert {"script-src 'self'", "style-src 'self'", "worker-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert "unsafe" not in " ".join(policy)
    assert "blob:" not in " ".join(policy)


@pytest.mark.parametrize(
    "path", ["../secret.txt", "assets/../../secret.txt", "/etc/passwd", "assets/..", "", ".", "a\x00b", "no such"]
)
def test_a_path_that_leaves_the_bundle_is_no_file(bundle, path):
    assert console.find(path) is None


def test_a_link_that_leaves_the_bundle_is_no_file(bundle):
    (bundle / "out.txt").symlink_to(bundle.parent / "secret.txt")
    assert console.find("out.txt") is None
    assert console.find("icon.svg") == (bundle / "icon.svg").resolve()


async def test_the_root_takes_a_browser_to_the_console_and_nobody_else(browser):
    page = await browser.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (page.status_code, page.headers["location"]) == (307, "/console/")
    assert (await browser.get("/", headers={"Accept": "application/json"})).status_code == 404
    assert (await browser.get("/console")).headers["location"] == "/console/"


async def test_an_installation_without_a_console_says_how_to_get_one(browser, bundle):
    (bundle / "index.html").unlink()
    response = await browser.get("/console/")
    assert response.status_code == 404
    assert "make console" in response.json()["detail"]
