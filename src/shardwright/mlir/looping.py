"""scf.for and scf.while: loops of the program in the global view, unrolled in the local one."""

from collections.abc import Sequence
from typing import Any

from xdsl.ir import Block, Operation

from shardwright.lines import located
from shardwright.mlir.branches import Walk
from shardwright.mlir.values import GlobalView, Value
from shardwright.program import scan, while_loop
from shardwright.xla import is_known, splat

MOST_ROUNDS = 10_000  # that a loop of the local view may have


class Loops:
    """Walks the loops of a function."""

    def __init__(self, reader: Any) -> None:
        self.reader, self.source, self.view = reader, reader.source, reader.view

    def counted(self, op: Operation) -> Walk:
        """scf.for."""
        reader = self.reader
        lower, upper, step, *carried = (reader.values[x] for x in op.operands)
        block = op.regions[0].block
        known = all(map(is_known, (lower, upper, step)))
        if known and int(step) <= 0:
            raise self.source.error(f"The step of the loop is {int(step)}; it must be positive.", op)
        if isinstance(self.view, GlobalView):
            with located(self.source.line_of(op)), reader.blamed(op):
                return self._looped(block, (lower, upper, step), carried, known)
        if not known:
            raise self.source.error(
                "The bounds of the loop differ between devices or depend on data. Use constants.", op
            )
        rounds = range(int(lower), int(upper), int(step))
        if len(rounds) > MOST_ROUNDS:
            raise self.source.error(
                f"The loop has {len(rounds):,} rounds; in the local view at most {MOST_ROUNDS:,} are unrolled.", op
            )
        for at in rounds:
            carried = yield from reader.block(block, [splat(at, (), lower.dtype), *carried])
        return carried

    def _looped(self, block: Block, bounds: Any, carried: list[Value], known: bool) -> list[Value]:
        """A loop of the global view, as a loop of the program."""
        lower, upper, step = bounds

        def body(at: Value, values: Sequence[Value]) -> tuple[Value, ...]:
            return self._lifted(self.reader.driven(self.reader.block(block, [at, *values])))

        start = self._lifted(carried)
        if known:
            rounds = len(range(int(lower), int(upper), int(step)))
            if not block.args[0].uses:  # nothing reads the counter, so it is not carried
                made, _ = scan(lambda state, _: (body(lower, state), None), start, length=rounds)
                return list(made)

            def each(state: Any, _: Any) -> Any:
                return (self.view.row("add", state[0], step), body(state[0], state[1])), None

            ((_, made), _) = scan(each, (self.view.lifted(lower), start), length=rounds)
            return list(made)

        def again(state: Any) -> Any:
            return self.view.row("less", state[0], upper)

        def once(state: Any) -> Any:
            return self.view.row("add", state[0], step), body(state[0], state[1])

        _, made = while_loop(again, once, (self.view.lifted(lower), start))
        return list(made)

    def _lifted(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(map(self.view.lifted, values))

    # -- scf.while ----------------------------------------------------------------------------------------------------

    def conditional(self, op: Operation) -> Walk:
        """scf.while: the first region gives a condition and values, the second takes these to the next round."""
        carried = [self.reader.values[x] for x in op.operands]
        if isinstance(self.view, GlobalView):
            with located(self.source.line_of(op)), self.reader.blamed(op):
                return self._while(op, carried)
        before, after = (region.block for region in op.regions)
        for _ in range(MOST_ROUNDS + 1):
            test, *values = yield from self.reader.block(before, carried)
            if not is_known(test):
                raise self.source.error(
                    "The condition of the loop depends on data, and the local view unrolls loops. Use scf.for with constant "
                    "bounds, or the global view.",
                    op,
                )
            if not bool(test):
                return values
            carried = yield from self.reader.block(after, values)
        raise self.source.error(
            f"The loop has more than {MOST_ROUNDS:,} rounds; in the local view at most that many are unrolled.", op
        )

    def _while(self, op: Operation, carried: Sequence[Value]) -> list[Value]:
        before, after = (region.block for region in op.regions)
        last = before.last_op
        assert last is not None

        def run(block: Block, values: Sequence[Value]) -> tuple[Value, ...]:
            return self._lifted(self.reader.driven(self.reader.block(block, values)))

        if list(last.operands[1:]) == list(before.args):  # what goes on is what came in
            made = while_loop(
                lambda state: run(before, state)[0], lambda state: run(after, state), self._lifted(carried)
            )
            return list(made)

        def once(state: Any) -> Any:
            return run(before, run(after, state[1:]))

        return list(while_loop(lambda state: state[0], once, run(before, carried))[1:])
