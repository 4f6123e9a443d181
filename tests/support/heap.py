"""What devices hold while a program runs, found naively: a heap of cells, filled and freed step by step, round by round.

It shares no code with the library but the bytes of a type. `counted` counts what the literal engine really holds.
"""

from contextlib import contextmanager

from shardwright.engines import literal

ROUNDS = 3  # that a while loop is taken to run


class Heap:
    """Cells with their bytes, and the most that was held: in all, and while each node ran."""

    def __init__(self):
        self.cells, self.count, self.most, self.running, self.during = {}, 0, 0, [], {}

    def new(self, kind):
        self.count += 1
        self.cells[self.count] = kind.local_bytes
        self.look()
        return self.count

    def free(self, cells):
        for cell in set(cells):
            del self.cells[cell]

    def look(self):
        total = sum(self.cells.values())
        self.most = max(self.most, total)
        for node in self.running:
            self.during[node] = max(self.during.get(node, 0), total)

    def run(self, program, given):
        """The cells of a program's outputs; those given stay the caller's."""
        cells = dict(zip(map(value, [*program.inputs, *program.constants]), given, strict=True))
        outputs = [value(node) for node in program.outputs]
        for at, node in enumerate(program.nodes):
            if node.op == "pick" or value(node) in cells:
                continue
            self.running.append(node)
            self.look()
            operands = [cells[value(x)] for x in node.nodes]
            kinds = {"cond": self.choice, "while_loop": self.loop, "scan": self.scan}
            made = kinds[node.op](node, operands) if node.op in kinds else map(self.new, node.types)
            cells.update(((node, which), cell) for which, cell in enumerate(made))
            self.running.pop()
            later = {value(x) for other in program.nodes[at + 1 :] if other.op != "pick" for x in other.nodes}
            done = [v for v in cells if v not in later and v not in outputs and cells[v] not in given]
            self.free([cells.pop(v) for v in done])
        return [cells[v] for v in outputs]

    def called(self, program, given, gone=()):
        """The same, each output in a cell of its own: what is only handed on is copied once `gone` cells are freed."""
        made = self.run(program, given)
        fresh = [cell not in given and cell not in made[:at] for at, cell in enumerate(made)]
        self.free(gone)
        return [cell if own else self.new(x.type) for cell, own, x in zip(made, fresh, program.outputs, strict=True)]

    def choice(self, node, operands):
        what, (_, *rest) = node.what, operands
        own = what.shared + what.captured
        self.free(self.called(what.true, rest[:own]))
        return self.called(what.false, [*rest[: what.shared], *rest[own:]])

    def loop(self, node, operands):
        what = node.what
        own = what.carried + what.captured
        state, inside, outside = operands[: what.carried], operands[what.carried : own], operands[own:]
        for number in range(ROUNDS):
            self.free(self.called(what.condition, [*state, *outside]))
            state = self.called(what.body, [*state, *inside], state if number else ())
        return state

    def scan(self, node, operands):
        what = node.what
        if not what.rounds:
            return [self.new(kind) for kind in node.types]
        own = what.carried + what.tables
        state, inside, collected = operands[: what.carried], operands[own:], []
        for number in range(what.rounds):
            rows = [self.new(x.type) for x in what.body.inputs[what.carried : own]]
            made = self.called(what.body, [*state, *rows, *inside], state if number else ())
            state, collected = made[: what.carried], [*collected, *made[what.carried :]]
            if number + 1 < what.rounds:
                self.free(rows)
        stacked = [self.new(kind) for kind in node.types[what.carried :]]
        self.free([*collected, *rows])
        return [*state, *stacked]


def value(node):
    return (node.nodes[0], node.what.which) if node.op == "pick" else (node, 0)


def inside(node):
    return [getattr(node.what, name) for name in ("true", "false", "condition", "body") if hasattr(node.what, name)]


def simulated(program):
    """The most that is held at a time, and while each step of explain's table runs, in the order of the table."""
    heap = Heap()
    heap.run(program, [heap.new(node.type) for node in (*program.inputs, *program.constants)])

    def steps(program):
        for node in program.nodes:
            if node.op not in ("input", "constant", "pick", "to_local", "from_local"):
                yield heap.during.get(node)
            for part in inside(node):
                yield from steps(part)

    return heap.most, list(steps(program))


def unread(program):
    """Bytes of results that nothing reads: engines keep them until the program ends."""
    read = {value(x) for node in program.nodes if node.op != "pick" for x in node.nodes} | set(
        map(value, program.outputs)
    )
    own = sum(kind.local_bytes for node in program.nodes for at, kind in enumerate(node.types)
              if node.op != "pick" and (node, at) not in read)  # fmt: skip
    return own + sum(unread(part) for node in program.nodes for part in inside(node))


class Counter:
    """Bytes of the literal engine's arrays that are alive, per device, and the most at a time."""

    def __init__(self):
        self.live, self.most = {}, 0

    def add(self, store):
        self.live[id(store)] = [part.nbytes for part in store.parts]
        self.most = max(self.most, *map(sum, zip(*self.live.values(), strict=True)))


@contextmanager
def counted():
    """Inside, every value that the literal engine makes is counted until it is let go."""
    kept, counter = literal.Store, Counter()

    class Counted(kept):
        def __init__(self, parts, dtype=None):
            super().__init__(parts, dtype)
            counter.add(self)

        def __del__(self):
            counter.live.pop(id(self), None)

    literal.Store = Counted
    try:
        yield counter
    finally:
        literal.Store = kept
