"""Templates and conditions: what they give, what they refuse, and that every short cut gives what CEL gives."""

import json
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import cel
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PayloadError
from headrace.expressions import (
    DEPTH_MAX,
    EXPRESSION_CHARS_MAX,
    EXPRESSION_NESTING_MAX,
    EXPRESSION_SYMBOLS_MAX,
    ExpressionError,
    compile_condition,
    compile_template,
    inspect_template,
)
from headrace.messages import PAYLOAD_BYTES_MAX

ORDER = b'{"id":"o-1","total":129.5,"count":3,"lines":[{"sku":"a","qty":2},{"sku":"b","qty":1}],"note":null}'
OUTPUTS = {"price": b'{"total": 12.5, "tax": {"rate": 0.2}}', "a-b": b"[1,2]", "skipped": None, "yes": b"true"}


def render(value: Any, input: bytes = ORDER, outputs: dict[str, bytes | None] | None = None) -> bytes:
    return compile_template(value).render(input, (OUTPUTS if outputs is None else outputs).get)


def refuse(call: Callable[[], object]) -> str:
    with pytest.raises(PayloadError) as caught:
        call()
    assert caught.value.reason == "BAD_INPUT"
    return caught.value.message


# == what a template gives =============================================================================================
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${{ input }}", ORDER),
        ("${{input}}", ORDER),
        ("${{ tasks.price.output }}", OUTPUTS["price"]),
        ('${{ tasks["a-b"].output }}', b"[1,2]"),
        ("${{ tasks['a-b'].output[1] }}", b"2"),
        ("${{ tasks.skipped.output }}", b"null"),
        ("${{ tasks.nobody_knows.output }}", b"null"),
        ("${{ input.total }}", b"129.5"),
        ("${{ input['total'] }}", b"129.5"),
        ("${{ input.lines[1].sku }}", b'"b"'),
        ("${{ input.note }}", b"null"),
        ("${{ input.count * 2 }}", b"6"),
        ("${{ input.total * 2.0 }}", b"259.0"),
        ("${{ input.lines.map(line, line.qty) }}", b"[2,1]"),
        ("${{ input.lines.filter(line, line.qty > 1).map(line, line.sku) }}", b'["a"]'),
        ("${{ input.lines.all(line, line.qty > 0) }}", b"true"),
        ("${{ input.lines.exists(input_line, input_line.sku == 'b') }}", b"true"),
        ("${{ input.lines.exists_one(l, l.qty == 1) }}", b"true"),
        ("${{ has(input.discount) ? input.discount : 0 }}", b"0"),
        ("${{ {'b': {'c': 1}, 'a': '}}'} }}", b'{"a":"}}","b":{"c":1}}'),
        ("${{ {'a': {'b': 1}}}}", b'{"a":{"b":1}}'),
        ("${{ type(input.count) == int }}", b"true"),
        ("Order ${{ input.id }}: ${{ input.total }} EUR", b'"Order o-1: 129.5 EUR"'),
        ("${{ input.id }}${{ input.note }}", b'"o-1null"'),
        ("<${{ input.lines[0] }}>", b'"<{\\"sku\\":\\"a\\",\\"qty\\":2}>"'),
        ("$${{ input }} and ${{ input.id }}", b'"${{ input }} and o-1"'),
        ("$${{", b'"${{"'),
        ("}} { $ {{ }}", b'"}} { $ {{ }}"'),
        ("", b'""'),
        (None, b"null"),
        ({"a": 1, "b": [True, 1.0, "é"]}, '{"a":1,"b":[true,1.0,"é"]}'.encode()),
        ({"order": "${{ input }}", "x": ["${{ tasks.yes.output }}", 1]}, b'{"order":' + ORDER + b',"x":[true,1]}'),
        ({"t": "${{ input.total }}", "u": "${{ input.count + 1 }}"}, b'{"t":129.5,"u":4}'),
        ([], b"[]"),
    ],
)
def test_a_template_renders(value: Any, expected: bytes) -> None:
    assert render(value) == expected


def test_a_template_knows_the_tasks_it_reads() -> None:
    template = compile_template(
        {"a": "${{ tasks.a.output }}", "b": ["${{ tasks['b-c'].output.x + tasks.d.output }}", "${{ input.tasks }}"]}
    )
    assert template.references == {"a", "b-c", "d"}
    assert compile_condition("tasks.a.output == 'tasks.b.output'").references == {"a"}
    assert compile_template("${{ input.l.map(a, a.tasks + tasks.x.output) }}").references == {"x"}


def test_a_whole_value_is_not_copied_or_parsed() -> None:
    anything = b'{"odd" :  1e400, "big": 123456789012345678901234567890 }'
    assert render("${{ input }}", anything) is anything
    assert render({"x": "${{ input }}"}, anything) == b'{"x":' + anything + b"}"


def test_numbers_keep_their_type_and_their_digits() -> None:
    given = b'{"i": 1, "f": 1.0, "big": 123456789012345678901234567890, "long": 0.10}'
    for path, expected in {"i": b"1", "f": b"1.0", "big": b"123456789012345678901234567890", "long": b"0.10"}.items():
        assert render(f"${{{{ input.{path} }}}}", given) == expected
    assert render("${{ [input.i, input.f] }}", given) == b"[1,1.0]"


def test_an_integer_beyond_64_bits_is_never_rounded() -> None:
    given = b'{"big": 123456789012345678901234567890, "small": 1}'
    assert "does not fit 64 bits" in refuse(lambda: render("${{ [input.big] }}", given))
    assert render("${{ [input.small] }}", given) == b"[1]"
    assert "verflow" in refuse(lambda: render("${{ input.n + 1 }}", b'{"n": 9223372036854775807}'))
    assert "beyond 64 bits" in refuse(lambda: render("${{ [18446744073709551615u] }}"))


def test_a_missing_field_is_an_error_that_names_the_path() -> None:
    assert refuse(lambda: render("${{ input.customer.name }}")) == "input.customer.name: there is no field 'customer'"
    assert refuse(lambda: render("${{ input.total.x }}")).startswith("input.total.x: cannot read 'x'")
    assert refuse(lambda: render("${{ input.lines[7] }}")) == "input.lines[7]: there is no item 7"
    assert refuse(lambda: render("${{ tasks.skipped.output.x }}")).startswith("tasks.skipped.output.x: cannot read")
    assert refuse(lambda: render("${{ input.custmer == 1 }}")) == "input.custmer == 1: there is no field 'custmer'"


@pytest.mark.parametrize(
    "expression",
    [
        "0.0 / 0.0", "1.0 / 0.0", "b'bytes'", "[b'x']", "'\\u0000'", "{'a': ['\\u0000']}", "{1: 2}", "{true: 1}",
        "timestamp('2020-01-01T00:00:00Z')", "duration('1s')", "1 / 0", "input.id + 1", "int('x')", "{'a\\u0000': 1}",
        "input.id.matches('(')", "string([1])",
    ],
)  # fmt: skip
def test_what_fails_or_is_no_json_is_bad_input(expression: str) -> None:
    assert refuse(lambda: render(f"${{{{ {expression} }}}}")).startswith(f"{expression}: ")


def test_an_input_beyond_the_limit_is_refused() -> None:
    big = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"'
    assert render("${{ input }}", big) == big
    with pytest.raises(PayloadError) as caught:
        render(["${{ input }}"], big)
    assert caught.value.reason == "INPUT_TOO_LARGE"


def test_a_result_that_nests_too_deep_is_refused() -> None:
    deepest = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    tricky = b'["[[[[",' + b'{"}":[' * 31 + b"]}" * 31 + b', "\\"[" ]'
    assert render("${{ input }}", deepest) == deepest
    assert "nest" in refuse(lambda: render(["${{ input }}"], deepest))
    assert "nest" in refuse(lambda: render("${{ [input] }}", deepest))
    assert "nest" in refuse(lambda: render(["${{ input.x }}"], b'{"x":' + deepest + b"}"))
    assert render(["${{ input }}"], tricky) == b"[" + tricky + b"]"
    assert "nest" in refuse(lambda: render([["${{ input }}"]], tricky))
    assert render(["${{ input }}"], b'"' + b"[" * 1_000 + b'"') == b'["' + b"[" * 1_000 + b'"]'


def test_objects_made_by_an_expression_have_one_order() -> None:
    assert {render("${{ {'b': 1, 'a': 2, 'c': input} }}", b'{"z":1,"y":2}') for _ in range(20)} == {
        b'{"a":2,"b":1,"c":{"y":2,"z":1}}'
    }


def test_one_template_serves_many_threads() -> None:
    template = compile_template({"x": "${{ input.n + tasks.a.output.n }}", "y": "${{ input.n }}"})
    wrong: list[bytes] = []

    def work(n: int) -> None:
        expected = b'{"x":%d,"y":%d}' % (2 * n, n)
        payload = b'{"n":%d}' % n
        wrong.extend(got for _ in range(300) if (got := template.render(payload, {"a": payload}.get)) != expected)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# == conditions ========================================================================================================
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("${{ false }}", False),
        (" ${{ input.total > 100.0 }} ", True),
        ("input.total > 100.0 && tasks.price.output.tax.rate < 0.1", False),
        ("tasks.yes.output", True),
        ("tasks.skipped.output == null", True),
        ("has(input.nothing) && input.nothing.at.all", False),
        ("has(input.lines) && size(input.lines) == 2", True),
        ("input == input", True),
        ("input.id == '${{ x }}'", False),
    ],
)
def test_a_condition_decides(text: str, expected: bool) -> None:
    if "${{ x" in text:
        text = f"${{{{ {text} }}}}"
    assert compile_condition(text).evaluate(ORDER, OUTPUTS.get) is expected


@pytest.mark.parametrize(
    "text", ["input.total", "input.id", "1", "'true'", "null", "input.missing", "tasks.skipped.output"]
)
def test_a_condition_that_is_no_boolean_is_bad_input(text: str) -> None:
    refuse(lambda: compile_condition(text).evaluate(ORDER, OUTPUTS.get))


# == what is refused at publish ========================================================================================
REFUSED = [
    ("${{ }}", "empty"),
    ("${{ input", "not closed"),
    ("${{ 'a }} ", "unexpected"),
    ("${{ input + }}", "syntax error at column"),
    ("${{ input input }}", "syntax error at column"),
    ("${{ input.in }}", 'a word of the language stands in brackets: ["in"]'),
    ("${{ (input }}", "syntax error"),
    ("${{ input; }}", "unexpected ';'"),
    ("${{ input // why }}", "comments"),
    ("${{ order }}", "unknown variable order"),
    ("${{ .input }}", "begin with a dot"),
    ("${{ tasks }}", "must be named"),
    ("${{ tasks.a }}", "only its output"),
    ("${{ tasks.a.state }}", "only its output"),
    ("${{ tasks.a-b.output }}", 'tasks["a-…"]'),
    ("${{ tasks[input.name].output }}", "must be named"),
    ("${{ tasks['a' + 'b'].output }}", "must be named"),
    ("${{ tasks['a\\x62'].output }}", "must be named"),
    ("${{ tasks.map(t, t) }}", "must be named"),
    ("${{ tasks.a.output() }}", "only its output"),
    ("${{ now() }}", "no function now"),
    ("${{ input.delete() }}", "no function delete"),
    ("${{ map(input, x, x) }}", "no function map"),
    ("${{ Order{id: 1} }}", "message type"),
    ("${{ input.l.map(tasks, tasks) }}", "cannot be called tasks"),
    ("${{ input.l.map(input, input) }}", "cannot be called input"),
    ("${{ input.l.map(x, x) + x }}", "unknown variable x"),
    ("${{ " + "1" * (EXPRESSION_CHARS_MAX + 1) + " }}", "characters"),
    ("${{ " + "1+" * EXPRESSION_SYMBOLS_MAX + "1 }}", "symbols"),
    ("${{ " + "(" * (EXPRESSION_NESTING_MAX + 1) + "1" + ")" * (EXPRESSION_NESTING_MAX + 1) + " }}", "nest 32 deep"),
    ("${{ input.map(a, input.map(b, input.map(c, c))) }}", "nest 2 deep"),
    ({"${{ input }}": 1}, "key cannot hold"),
    ({1: 2}, "must be text"),
    ("\0", "U+0000"),
    ("\ud800", "surrogates"),
    ({"\0": 1}, "U+0000"),
    (math.nan, "not a JSON value"),
    (b"x", "not a JSON value"),
    (2**63, "64 bits"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_can_be_known_to_be_wrong_is_refused_at_publish(value: Any, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_template(value)
    assert message in caught.value.message
    assert [finding.error for finding in inspect_template(value)] == [caught.value.message]


def test_an_error_has_its_path_within_the_value() -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_template({"a": [1, {"b": "${{ nope }}"}]})
    assert caught.value.path == ("a", 1, "b")


def test_inspection_finds_everything_at_once() -> None:
    findings = inspect_template({"a": "${{ nope }}", "b": ["x", "${{ tasks.t.output }}", "${{ 1 + }}"]})
    assert [(finding.path, sorted(finding.references), bool(finding.error)) for finding in findings] == [
        (("a",), [], True),
        (("b", 1), ["t"], False),
        (("b", 2), [], True),
    ]


def test_b88_a_value_nested_10000_deep_is_refused() -> None:
    nested: Any = 1
    for _ in range(10_000):
        nested = [nested]
    with pytest.raises(ExpressionError, match="nest 64 deep"):
        compile_template(nested)


@pytest.mark.parametrize(
    "expression",
    [
        "1" + "+1" * 249, "-" * 499 + "1", "!" * 499 + "true", "true" + "&&true" * 249, "1" + "<1" * 249,
        "input" + ".a" * 249, "[0].map(a, 1" + "+1" * 240 + ")", "(" * 32 + "1" + ")" * 32, "[" * 32 + "]" * 32,
        "true ? 1 : " * 124 + "1", "size(" * 31 + "''" + ")" * 31,
    ],
)  # fmt: skip
def test_b88_the_longest_expressions_fit_a_small_stack(expression: str) -> None:
    outcomes: list[str] = []

    def work() -> None:
        try:
            outcomes.append(render("${{ " + expression + " }}").decode())
        except (PayloadError, ExpressionError) as error:
            outcomes.append(error.message)

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert len(outcomes) == 1


@pytest.mark.parametrize(
    "expression",
    [
        "input.map(x, x)", "input.filter(x, x > 1)", "input.map(x, size(input))", "input.map(x, input.map(y, x + y))",
        "input.all(x, input.exists(y, x == y))", "(input + input + input).map(x, x)",
    ],
)  # fmt: skip
def test_an_evaluation_that_would_take_long_is_refused_at_once(expression: str) -> None:
    many = json.dumps(list(range(100_000))).encode()
    began = time.process_time()
    assert "let a task do it" in refuse(lambda: render(f"${{{{ {expression} }}}}", many))
    assert time.process_time() - began < 1


def test_an_evaluation_that_would_fill_the_memory_is_refused_at_once() -> None:
    long = json.dumps({"s": "x" * 800_000, "l": list(range(200))}).encode()
    assert "too large" in refuse(lambda: render("${{ " + " + ".join(["input.s"] * 100) + " }}", long))
    assert "too large" in refuse(lambda: render("${{ input.l.map(x, input.s) }}", long))


def test_usual_amounts_of_data_are_fine() -> None:
    rows = json.dumps([{"id": n, "qty": n % 7} for n in range(1_000)]).encode()
    assert len(json.loads(render("${{ input.map(row, row.id) }}", rows))) == 1_000
    assert render("${{ input.exists(row, row.id == 999) }}", json.dumps([{"id": n} for n in range(10_000)]).encode())


# == the short cuts give what CEL gives ================================================================================
keys = st.sampled_from(["a", "b", "total", "x1"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
roots = st.sampled_from(["input", "tasks.a.output", 'tasks["b-c"].output'])
accessors = st.lists(
    keys.map(".{}".format) | keys.map('["{}"]'.format) | st.integers(0, 3).map("[{}]".format), max_size=4
)
paths = st.builds(lambda root, rest: root + "".join(rest), roots, accessors)


def by_cel(expression: str, data: dict[str, Any]) -> tuple[bool, Any]:
    """(did it work, the result): what CEL says about the whole data, with none of our short cuts."""
    tasks = {name: {"output": value} for name, value in data.items() if name != "input"}
    try:
        return True, cel.compile(expression).execute({"input": data["input"], "tasks": tasks})
    except (LookupError, TypeError, RuntimeError, ValueError, ArithmeticError):
        return False, None


def by_us(expression: str, data: dict[str, Any]) -> tuple[bool, Any]:
    encoded = {name: msgspec.json.encode(value) for name, value in data.items()}
    try:
        rendered = compile_template(f"${{{{ {expression} }}}}").render(encoded["input"], encoded.get)
    except PayloadError:
        return False, None
    return True, msgspec.json.decode(rendered)


def same(one: Any, other: Any) -> bool:
    """Equal, and equal in type all the way down: 1 is neither 1.0 nor true."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


data_of_a_run = st.fixed_dictionaries({"input": values, "a": values, "b-c": values})


@settings(deadline=None)
@given(path=paths, data=data_of_a_run)
def test_a_plain_path_gives_what_cel_gives(path: str, data: dict[str, Any]) -> None:
    ours, theirs = by_us(path, data), by_cel(path, data)
    assert ours[0] == theirs[0], (ours, theirs)
    assert same(ours[1], theirs[1]), (ours, theirs)


@settings(deadline=None)
@given(
    form=st.sampled_from(["[{0}, {1}]", "{0} == {1}", "{{'p': {0}, 'q': {1}}}", "size({0}) + size({1})",
                          "[{0}] + [{1}]", "has({0}.a) && has({1}.b)", "has({0}.a) || {1} == null",
                          "true || {0} == {1}",
                          "[1, 2].map(v, [v, {0}, {1}])", "{0}.exists(v, v == {1})", "type({0}) == type({1})"]),
    one=paths, other=paths, data=data_of_a_run,
)  # fmt: skip
def test_pruned_data_gives_what_all_the_data_gives(form: str, one: str, other: str, data: dict[str, Any]) -> None:
    expression = form.format(one, other)
    ours, theirs = by_us(expression, data), by_cel(expression, data)
    assert ours[0] == theirs[0], (expression, ours, theirs)
    assert same(ours[1], theirs[1]), (expression, ours, theirs)


@settings(deadline=None)
@given(path=paths, data=data_of_a_run)
def test_text_holds_a_string_as_it_is_and_anything_else_as_json(path: str, data: dict[str, Any]) -> None:
    worked, value = by_us(path, data)
    encoded = {name: msgspec.json.encode(item) for name, item in data.items()}
    if worked:
        rendered = json.loads(compile_template(f"<${{{{ {path} }}}}> é").render(encoded["input"], encoded.get))
        assert rendered == f"<{value if isinstance(value, str) else msgspec.json.encode(value).decode()}> é"


@settings(deadline=None)
@given(values)
def test_a_template_without_expressions_renders_itself(value: Any) -> None:
    template = compile_template(json.loads(json.dumps(value).replace("${{", "")))
    assert same(json.loads(template.render(b"{}", OUTPUTS.get)), json.loads(json.dumps(value).replace("${{", "")))


def test_the_short_cuts_never_reach_cel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_run(text: str) -> None:
        raise AssertionError(f"CEL was asked for {text}")

    monkeypatch.setattr(cel, "compile", refuse_to_run)
    assert render({"a": "${{ input }}", "b": "${{ tasks.price.output.tax.rate }}", "c": "n ${{ input.id }}"}) == (
        b'{"a":' + ORDER + b',"b":0.2,"c":"n o-1"}'
    )
