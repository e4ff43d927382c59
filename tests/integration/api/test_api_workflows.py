"""Publishing: the same content is the same version, whoever sends it and however often."""

import asyncio

import pytest

YAML = {"content-type": "application/yaml"}
ONE = "name: hello\ntasks: { greet: { run: hello.greet } }"


async def test_same_content_is_the_same_version(api):
    first = await api.post("/workflows", content=ONE, headers=YAML)
    again = await api.post(
        "/workflows", json={"tasks": {"greet": {"run": "hello.greet", "queue": "default"}}, "name": "hello"}
    )
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["created"]
    assert not again.json()["created"]
    assert first.json()["version"] == again.json()["version"] == 1
    assert first.json()["digest"] == again.json()["digest"]


async def test_other_content_is_the_next_version_and_old_ones_stay(api):
    await api.publish(ONE)
    second = await api.publish("name: hello\ntasks: { greet: { run: hello.greet2 } }")
    assert second["version"] == 2
    workflow = await api.read("/workflows/hello")
    assert [version["version"] for version in workflow["versions"]] == [2, 1]
    assert workflow["definition"]["tasks"]["greet"]["run"] == "hello.greet2"
    old = await api.read("/workflows/hello/versions/1")
    assert old["definition"]["tasks"]["greet"]["run"] == "hello.greet"
    assert old["published_by"] == "local"


async def test_racing_publishes_count_versions_without_a_gap(api, engine):
    texts = [f"name: hello\ntasks: {{ greet: {{ run: hello.greet{i % 5} }} }}" for i in range(20)]
    published = await asyncio.gather(*map(api.publish, texts))
    assert {item["version"] for item in published} == {1, 2, 3, 4, 5}
    assert sum(item["created"] for item in published) == 5
    assert (await api.read("/workflows"))["items"][0]["latest_version"] == 5


async def test_every_fault_of_a_definition_is_named_with_path_and_line(api, engine):
    text = "name: hello\ntasks:\n  a: { run: x, needs: b }\n  b: { run: y, needs: a }\n  c: { run: z, needs: nope }\n"
    response = await api.post("/workflows", content=text, headers=YAML)
    assert response.status_code == 422
    problem = response.json()
    assert problem["code"] == "HR-1002"
    assert {(fault["path"], fault["line"]) for fault in problem["errors"]} >= {("tasks.c.needs", 5)}
    assert any("cycle" in fault["message"] for fault in problem["errors"])
    assert engine.count("workflow") == 0


@pytest.mark.parametrize("text", [b"", b"  ", b"{", b"\xff\xfe", b"[" * 50_000, b"name: [", b"{}", b"null", b"1"])
async def test_what_is_no_workflow_is_refused(api, text):
    for media_type in ("application/yaml", "application/json"):
        response = await api.post("/workflows", content=text, headers={"content-type": media_type})
        assert response.status_code == 422, response.text
        assert response.json()["errors"]


async def test_a_media_type_that_a_form_can_send_is_refused(api):
    response = await api.post("/workflows", content=ONE, headers={"content-type": "text/plain"})
    assert response.status_code == 415


async def test_workflows_are_listed_by_name_page_by_page(api):
    for name in ("b", "c", "a"):
        await api.publish(f"name: {name}\ntasks: {{ x: {{ run: y }}, z: {{ run: y }} }}")
    pages = await api.pages("/workflows", limit=2)
    assert [[item["name"] for item in page] for page in pages] == [["a", "b"], ["c"]]
    assert pages[0][0]["tasks"] == 2


async def test_what_was_never_published_is_not_found(api):
    await api.publish(ONE)
    for path in ("/workflows/nope", "/workflows/hello/versions/2", "/workflows/hello%0a", "/workflows/%2e%2e"):
        assert (await api.get(path)).status_code == 404
    assert (await api.get("/workflows/hello/versions/0")).status_code == 422
