"""Arrays from outside are read anew at every call; objects with jitted methods can be copied; statics are told apart."""

import copy
import functools
import gc
import operator
import pickle
import threading
import warnings
import weakref
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_same
from shardwright import P
from shardwright.errors import ProgramError, RetraceWarning
from shardwright.program.statics import token

MESH = sw.Mesh(x=4)


def vector(start=0.0, size=8):
    return sw.shard(np.arange(start, start + size), MESH, P("x"))


class Model:
    def __init__(self, w):
        self.w = w
        self.layers = [{"w": w * 2}]

    @sw.sjit
    def step(self, x):
        """x + w."""
        return x + self.w

    @sw.sjit
    def deep(self, x):
        return x + self.layers[0]["w"]


class Slotted:
    __slots__ = ("w",)

    def __init__(self, w):
        self.w = w

    @sw.sjit
    def step(self, x):
        return x * self.w


GLOBAL = vector(1)
TREE = {"a": [vector(1)]}


def test_a_rebound_attribute_is_read():
    model, x = Model(vector(1)), vector()
    assert_same(model.step(x), np.arange(8.0) * 2 + 1)
    assert_same(model.deep(x), np.arange(8.0) * 3 + 2)
    model.w = vector(100)
    model.layers[0]["w"] = vector(7)
    assert_same(model.step(x), np.arange(8.0) * 2 + 100)
    assert_same(model.deep(x), np.arange(8.0) * 2 + 7)
    model.w += 1
    assert_same(model.step(x), np.arange(8.0) * 2 + 101)
    assert model.step.cache_size() == 1


def test_an_attribute_of_another_kind_is_traced_anew():
    model, x = Model(vector(1)), vector()
    model.step(x)
    model.w = sw.replicate(np.full(8, 5.0), MESH)
    assert_same(model.step(x), np.arange(8.0) + 5)
    model.w = vector(1).astype(np.float32)
    assert_same(model.step(x), np.arange(8.0) * 2 + 1)
    model.w = 3.0
    assert_same(model.step(x), np.arange(8.0) + 3)


def test_variables_of_enclosing_functions_and_globals_are_read():
    global GLOBAL
    w, tree = vector(1), {"b": vector(2)}
    holder = SimpleNamespace(inner=(vector(3),))
    step = sw.sjit(lambda x: x + w + tree["b"] + holder.inner[0] + GLOBAL + TREE["a"][0])
    x = vector()
    expected = np.arange(8.0) * 6 + 1 + 2 + 3 + 1 + 1
    assert_same(step(x), expected)
    w = vector(11)
    assert_same(step(x), expected + 10)
    tree["b"] = vector(12)
    assert_same(step(x), expected + 20)
    holder.inner = (vector(13),)
    assert_same(step(x), expected + 30)
    before, GLOBAL = GLOBAL, vector(11)
    assert_same(step(x), expected + 40)
    GLOBAL = before
    TREE["a"][0] = vector(11)
    assert_same(step(x), expected + 40)
    assert step.cache_size() == 1


def test_arrays_that_inner_functions_defaults_and_partials_hold_are_read():
    def inner(x):
        return x * w

    def outer(x, bias=None, *, table=None):
        return inner(x) + table["t"]

    outer.__kwdefaults__["table"] = {"t": vector(2)}
    w = vector(1)
    step = sw.sjit(outer)
    base = np.arange(8.0)
    assert_same(step(vector()), base * (base + 1) + base + 2)
    w = vector(3)
    outer.__kwdefaults__["table"]["t"] = vector(5)
    assert_same(step(vector()), base * (base + 3) + base + 5)
    held = [vector(1)]
    part = sw.sjit(functools.partial(lambda held, x: x + held[0], held))
    assert_same(part(vector()), base * 2 + 1)
    held[0] = vector(4)
    assert_same(part(vector()), base * 2 + 4)


def test_two_names_for_one_array_are_told_apart_once_they_differ():
    first = second = vector(1)
    step = sw.sjit(lambda x: x + first if x.ndim else second)
    assert_same(step(vector()), np.arange(8.0) * 2 + 1)
    second = vector(50)
    assert_same(step(vector()), np.arange(8.0) * 2 + 1)
    first = vector(2)
    assert_same(step(vector()), np.arange(8.0) * 2 + 2)
    assert second.tolist()[0] == 50


def test_jitted_functions_inside_jitted_functions_read_anew():
    model = Model(vector(1))
    outer = sw.sjit(lambda x: model.step(x) * 2)
    assert_same(outer(vector()), (np.arange(8.0) * 2 + 1) * 2)
    model.w = vector(4)
    assert_same(outer(vector()), (np.arange(8.0) * 2 + 4) * 2)


COMPUTED = {
    "product": lambda w: w * 2,
    "transposed": lambda w: w.reshape((2, 4)).T.reshape((8,)),
    "resharded": lambda w: w.reshard(P()),
    "constrained": lambda w: sw.with_sharding_constraint(w, P()),
    "row": lambda w: w[1],
    "rows": lambda w: snp.stack([w, -w])[1],
    "same": lambda w: w.reshape((8,)),
    "copied": copy.copy,
    "reduced": lambda w: snp.sum(w),
    "long": lambda w: functools.reduce(lambda a, _: a + w, range(500), w * 2),
    "element": lambda w: float(w[1]),
    "host": np.asarray,
    "decided": lambda w: w if float(snp.sum(w)) > 50 else -w,
    "found": lambda w: snp.sum(w[w > 5]),
    "local": lambda w: sw.shard_map(lambda v: v.map(np.negative), w.mesh, P("x"), P("x"))(w),
    "loop": lambda w: sw.scan(lambda c, _: (c + w * 2, None), w, length=3)[0],
}  # fmt: skip


@pytest.mark.parametrize("engine", ["numpy", "literal"])
@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_from_arrays_from_outside_is_computed_anew(name, engine):
    mesh = sw.Mesh(x=4, engine=engine)

    def on_mesh(start):
        return sw.shard(np.arange(start, start + 8.0), mesh, P("x"))

    computed, w = COMPUTED[name], on_mesh(1)
    step = sw.sjit(lambda x: x * computed(w))
    x = on_mesh(0)
    first, second = np.asarray(step(x)), np.asarray(step(x))
    np.testing.assert_array_equal(first, x.numpy() * np.asarray(computed(w)))
    np.testing.assert_array_equal(first, second)
    w = on_mesh(7)
    np.testing.assert_array_equal(np.asarray(step(x)), x.numpy() * np.asarray(computed(w)))
    w += 1
    np.testing.assert_array_equal(np.asarray(step(x)), x.numpy() * np.asarray(computed(w)))
    assert step.cache_size() == 1


def test_what_is_computed_from_arrays_from_outside_is_explained():
    w = vector()
    rows = sw.explain(lambda x: x + snp.sum(w * 2), vector()).rows
    assert "multiply" in rows[0].operation
    assert any("all_reduce" in row.collective for row in rows)


def test_looking_at_an_array_traces_anew_only_when_it_changes():
    w, other, traced = vector(1), [vector(1)], []

    @sw.sjit
    def step(x):
        traced.append(1)
        return x * float(w[0]) + other[0]

    step(vector()), step(vector())
    other[0] = vector(2)
    assert_same(step(vector()), np.arange(8.0) * 2 + 2)
    assert len(traced) == 1
    w[0] = 5.0
    assert_same(step(vector()), np.arange(8.0) * 6 + 2)
    assert len(traced) == 2


class Config:
    w = vector(1)

    @classmethod
    @sw.sjit
    def scaled(cls, x):
        return x * cls.w

    @property
    def doubled(self):
        return type(self).w * 2

    def method(self, x):
        return x * GLOBAL


def test_arrays_of_classes_and_of_what_their_methods_read_are_read_anew():
    global GLOBAL
    x, base, config = vector(), np.arange(8.0), Config()
    steps = {
        "classmethod": Config.scaled,
        "class": sw.sjit(lambda x: x * Config.w),
        "property": sw.sjit(lambda x: x * config.doubled / 2),
    }
    for step in steps.values():
        assert_same(step(x), base * (base + 1))
    before, Config.w = Config.w, vector(3)
    for step in steps.values():
        assert_same(step(x), base * (base + 3))
    Config.w = before
    method = sw.sjit(lambda x: config.method(x))
    assert_same(method(x), base * (base + 1))
    before, GLOBAL = GLOBAL, vector(4)
    assert_same(method(x), base * (base + 4))
    GLOBAL = before


def test_containers_that_grow_are_read_anew():
    x, listed, named, queue = vector(), [vector(1)], {"a": vector(1)}, deque([vector(1)])
    step = sw.sjit(lambda x: x + listed[-1] + sum(named.values()) + queue[0])
    base = np.arange(8.0)
    assert_same(step(x), base * 4 + 3)
    listed.append(vector(10))
    assert_same(step(x), base * 4 + 12)
    named["b"] = vector(5)
    assert_same(step(x), base * 5 + 17)
    queue.appendleft(vector(2))
    assert_same(step(x), base * 5 + 18)


def test_arrays_behind_references_and_variables_of_a_context_are_read_anew():
    held, variable, own = Model(vector(1)), ContextVar("w"), threading.local()
    reference, view = weakref.ref(held), MappingProxyType(inner := {"w": vector(1)})
    variable.set(vector(1))
    own.w = vector(1)
    step = sw.sjit(lambda x: x + reference().w + variable.get() + own.w + view["w"])
    base = np.arange(8.0)
    assert_same(step(vector()), base * 5 + 4)
    held.w, own.w, inner["w"] = vector(2), vector(12), vector(102)
    variable.set(vector(1002))
    assert_same(step(vector()), base * 5 + 2 + 12 + 102 + 1002)


def test_a_deep_copy_of_an_object_has_its_bound_methods():
    model = SimpleNamespace(bound=Model(vector(1)))
    model.bound.jitted = sw.sjit(Model.step.function.__get__(model.bound))
    copied = copy.deepcopy(model)
    copied.bound.w = vector(5)
    assert_same(copied.bound.jitted(vector()), np.arange(8.0) * 2 + 5)
    assert_same(model.bound.jitted(vector()), np.arange(8.0) * 2 + 1)


def _generator(x):
    yield x


async def _coroutine(x):
    return x


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: sw.sjit(_generator), "_generator is a generator or a coroutine"),
        (lambda: sw.sjit(_coroutine), "_coroutine is a generator or a coroutine"),
        (lambda: sw.sjit(classmethod(_generator)), "write @classmethod in the line above @sw.sjit"),
        (lambda: sw.sjit(staticmethod(_generator)), "write @staticmethod in the line above @sw.sjit"),
        (lambda: sw.sjit(3), "sjit takes a function; got 3, a int"),
        (lambda: sw.sjit(lambda x: map(abs, [x]))(vector()), "returns a map, which can be read only once"),
    ],
)
def test_functions_that_make_no_program_are_refused(make, text):
    with pytest.raises(ProgramError, match=text):
        make()


@pytest.mark.parametrize("cls", [Model, Slotted])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copied_object_runs_its_own_program(cls, copied):
    one = cls(vector(1))
    expected = np.asarray(one.step(vector()))
    other = copied(one)
    assert_same(other.step(vector()), expected)
    other.w = vector(100)
    assert not np.array_equal(np.asarray(other.step(vector())), expected)
    assert_same(one.step(vector()), expected)


def test_a_method_keeps_its_object_and_its_programs_do_not():
    method = Model(vector(1)).step
    gc.collect()
    assert_same(method(vector()), np.arange(8.0) * 2 + 1)
    assert method.__doc__ == "x + w."
    assert sw.explain(method, vector()).rows
    gone = weakref.ref(method.__self__)
    del method
    gc.collect()
    assert gone() is None


def test_a_jitted_function_is_copied_and_pickled_by_what_it_wraps():
    step = sw.sjit(_twice, mesh=MESH)
    again = pickle.loads(pickle.dumps(step))
    assert_same(again(vector()), np.arange(8.0) * 2)
    assert copy.deepcopy({"f": step})["f"] is step


def _twice(x):
    return x * 2


# -- statics --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class C:
    value: object


class Own:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Own) and self.value == other.value

    def __hash__(self):
        return hash(self.value)


@pytest.mark.parametrize("wrap", [lambda v: v, C, Own, lambda v: (v,), lambda v: C((v, "a")), lambda v: frozenset({v})])
def test_statics_inside_values_have_programs_of_their_own(wrap):
    def described(x, s):
        inner = s
        while not isinstance(inner, bool | int | float):
            inner = next(iter(inner)) if isinstance(inner, tuple | frozenset) else inner.value
        return x + (1.0 if isinstance(inner, bool) else 2.0 if isinstance(inner, int) else 4.0 + np.copysign(1, inner))

    step = sw.sjit(described, static_argnums=1)
    found = [step(vector(), wrap(value)).tolist()[0] for value in (1, 1.0, True, 0.0, -0.0, 1)]
    assert found == [2, 5, 1, 5, 3, 2]
    assert step.cache_size() == 5


def test_tokens_tell_values_apart():
    alike = [
        (1, 1.0, True),
        (0.0, -0.0),
        (Decimal("1.0"), Decimal("1.00")),
        (C(1), C(1.0)),
        (np.datetime64("2020-01-01"), np.datetime64("2020-01-01T00")),
        (slice(0, 1), slice(0, 1.0), slice(False, 1)),
        (range(0), range(1, 1)),
        ("a", b"a"),
        ((), frozenset()),
    ]
    for values in alike:
        assert len({token(value) for value in values}) == len(values)
    assert token(C((1, 2))) == token(C((1, 2)))
    assert token(float("nan")) == token(float("nan"))


def test_ever_new_numbers_are_warned_of_once():
    step = sw.sjit(lambda x, lr, n: x * lr + n)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for at in range(80):
            assert step(vector(1), at / 7, 2).tolist()[0] == at / 7 + 2
    (warning,) = seen
    assert warning.category is RetraceWarning
    assert warning.filename == __file__
    assert "traced 33 times for calls that differ only in the Python numbers lr." in str(warning.message)
    one = sw.sjit(lambda x, lr: x * lr)
    for at in range(80):
        one(vector(), np.float64(at))
    assert one.cache_size() == 1


class Plain:
    pass


def test_arrays_in_static_arguments_are_read_at_every_call():
    given, x = Plain(), vector()
    given.w = vector(1)
    step = sw.sjit(lambda given, x: x * given.w)
    assert_same(step(given, x), np.arange(8.0) * (np.arange(8.0) + 1))
    given.w = vector(10)
    assert_same(step(given, x), np.arange(8.0) * (np.arange(8.0) + 10))
    given.w[0] = 5
    given.w = given.w + 1
    assert_same(step(given, x + 1), (np.arange(8.0) + 1) * np.where(np.arange(8) == 0, 6, np.arange(8.0) + 11))
    assert step.cache_size() == 1
    given.w = sw.replicate(np.full(8, 2.0), MESH)
    assert_same(step(given, x), np.arange(8.0) * 2)


class Equal:
    """All are equal, and one program serves them."""

    def __init__(self, w):
        self.w = w

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1


def test_of_equal_static_arguments_those_of_the_call_are_read():
    one, other = Equal(vector(1)), Equal(vector(10))
    step = sw.sjit(lambda given, x: x + given.w)
    for given, start in ((one, 1), (other, 10), (one, 1)):
        assert_same(step(given, vector()), np.arange(8.0) * 2 + start)
    assert step.cache_size() == 1


def test_the_order_of_names_is_part_of_a_program():
    pairs, x = [("a", vector(1)), ("b", vector(2))], vector()
    by_name = sw.sjit(lambda x: x * dict(pairs)["a"])
    by_name(x)
    pairs.reverse()
    assert_same(by_name(x), np.arange(8.0) * (np.arange(8.0) + 1))
    layers = {"a": vector(1), "b": vector(2)}

    def chain(x):
        for w in layers.values():
            x = (x + 1) * w
        return x

    step = sw.sjit(chain)
    step(x)
    layers["a"] = layers.pop("a")
    assert_same(step(x), np.asarray(chain(x)))


class Optional:
    def __init__(self):
        self.bias, self.w, self.parts = None, vector(1), {"scale": None}

    def shifted(self, x):
        return x if self.bias is None else x + self.bias

    @sw.sjit
    def step(self, x):
        return self.shifted(x * self.w)

    @sw.sjit
    def scaled(self, x):
        return x if self.parts["scale"] is None else x * self.parts["scale"]


BIAS = None


def shifted(x):
    return x if BIAS is None else x + BIAS


def test_arrays_that_come_where_there_was_none_are_read(monkeypatch):
    model, x, product = Optional(), vector(), np.arange(8.0) * (np.arange(8.0) + 1)
    assert_same(model.step(x), product)
    model.bias = vector(3)
    assert_same(model.step(x), product + np.arange(8.0) + 3)
    model.bias = None
    assert_same(model.step(x), product)
    assert_same(model.scaled(x), np.arange(8.0))
    model.parts["scale"] = vector(2)
    assert_same(model.scaled(x), np.arange(8.0) * (np.arange(8.0) + 2))
    more = []
    step, shift = sw.sjit(lambda x: sum(more, start=x)), sw.sjit(shifted)
    assert_same(step(x), np.arange(8.0))
    assert_same(shift(x), np.arange(8.0))
    more.append(vector(1))
    monkeypatch.setitem(globals(), "BIAS", vector(4))
    assert_same(step(x), np.arange(8.0) * 2 + 1)
    assert_same(shift(x), np.arange(8.0) * 2 + 4)


@dataclass(frozen=True)
class Divided:
    by: object

    def __call__(self, x):
        return x / self.by


class Tagged(int):
    def __new__(cls, value, tag):
        made = int.__new__(cls, value)
        made.tag = tag
        return made


def test_callable_objects_and_numbers_with_attributes_are_told_apart():
    assert len({token(Divided(by)) for by in (0.0, -0.0, 1, 1.0, True)}) == 5
    assert token(Divided(2)) == token(Divided(2))
    assert token(Tagged(1, 2.0)) != token(Tagged(1, 3.0))
    assert token(Tagged(1, 2.0)) == token(Tagged(1, 2.0)) != token(1)
    step = sw.sjit(lambda x, divided: divided(x))
    assert step(vector(1), Divided(2.0)).tolist()[0] == 0.5
    assert step(vector(1), Divided(-2.0)).tolist()[0] == -0.5


@pytest.mark.parametrize(
    ("function", "count"),
    [
        *((np.sin, 1), (np.add, 2), (np.sum, 1), (np.fft.fft, 1), (np.linalg.matmul, 2)),
        *(
            (operator.neg, 1),
            (operator.matmul, 2),
            (abs, 1),
            (functools.partial(np.sum, axis=0), 1),
            (functools.partial(operator.add, 2), 1),
        ),
    ],
)
def test_functions_written_in_c_are_programs(function, count):
    """Once they were searched for arrays without end."""
    host = np.arange(16.0).reshape(4, 4)
    x = sw.shard(host, MESH, P("x"))
    np.testing.assert_allclose(sw.sjit(function)(*[x] * count), function(*[host] * count))


def test_an_object_whose_call_is_written_in_c_is_a_program():
    class Sine:
        __call__ = np.sin

    x = sw.shard(np.arange(4.0), MESH, P("x"))
    assert_same(sw.sjit(Sine())(x), np.sin(np.arange(4.0)))


def test_every_name_of_a_container_is_followed():
    """Once only the first: the array of `shared` was read where `own` had become another."""

    class Model:
        of_class = None

        def __init__(self):
            self.own = self.shared = {"w": vector()}
            Model.of_class = self.own

        @sw.sjit
        def first(self, x):
            return x + self.own["w"]

        @sw.sjit
        def second(self, x):
            return x + self.shared["w"]

        @sw.sjit
        def third(self, x):
            return x + self.of_class["w"]

    model, x = Model(), vector()
    assert all(float(step(x)[0]) == 0 for step in (model.first, model.second, model.third))
    model.own = {"w": vector(1.0)}
    assert [float(step(x)[0]) for step in (model.first, model.second, model.third)] == [1, 0, 0]
    model.shared = {"w": vector(2.0)}
    assert [float(step(x)[0]) for step in (model.first, model.second, model.third)] == [1, 2, 0]
    Model.of_class = {"w": vector(3.0)}
    assert [float(step(x)[0]) for step in (model.first, model.second, model.third)] == [1, 2, 3]
    model.own = model.shared
    assert [float(step(x)[0]) for step in (model.first, model.second, model.third)] == [2, 2, 3]


def reads(w):
    return lambda: w


def reads_by_default(w):
    def read(w=w):
        return w

    return read


@pytest.mark.parametrize(
    "made",
    [
        *(reads, reads_by_default, lambda w: functools.partial(lambda w: w, w), lambda w: functools.partial(reads(w))),
        lambda w: sw.sjit(lambda: w, mesh=MESH),
    ],
)
def test_another_function_that_reads_an_array(made):
    """Once the array of the function that was called first."""
    held, kept, x = {"read": made(vector())}, SimpleNamespace(), vector()
    kept.read = kept.again = held["read"]
    steps = [sw.sjit(lambda x: x + held["read"]()), sw.sjit(lambda x: x + kept.again())]
    assert [float(step(x)[0]) for step in steps] == [0, 0]
    held["read"] = made(vector(1.0))
    assert [float(step(x)[0]) for step in steps] == [1, 0]
    kept.again = made(vector(2.0))
    assert [float(step(x)[0]) for step in steps] == [1, 2]
    kept.again = held["read"]
    assert [float(step(x)[0]) for step in steps] == [1, 1]


@pytest.mark.parametrize("frozen", [False, True])
def test_methods_of_objects_that_compare_their_fields(frozen):
    """Neither their hash, which may be missing, nor whether they are equal says which object it is."""

    @dataclass(frozen=frozen)
    class Model:
        w: object

        @sw.sjit
        def step(self, x):
            return x + self.w

    one, other = Model(vector()), Model(vector(1.0))
    for _ in range(2):
        assert [float(model.step(vector())[0]) for model in (one, other)] == [0, 1]


@sw.sjit
def doubled(x):
    return x * 2


class Scaled:
    @sw.sjit
    def step(self, x):
        return x * 3


def test_decorated_functions_are_pickled_by_name():
    """Once pickle found that their names lead to the jitted function and not to the one in it."""
    again = pickle.loads(pickle.dumps({"one": doubled, "other": Scaled.step, "made": sw.sjit(vector)}))
    assert again["one"] is doubled
    assert again["other"] is Scaled.step
    assert again["made"].function is vector
