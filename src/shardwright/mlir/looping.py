"""scf.for and scf.while as loops of the program; those of the local view whose counter is read are unrolled."""

from collections.abc import Sequence
from typing import Any

from xdsl.dialects import builtin as b
from xdsl.ir import Block, Operation

from shardwright.errors import MLIRError
from shardwright.lines import located
from shardwright.mlir.branches import Walk, path_shown
from shardwright.mlir.fields import is_uniform
from shardwright.mlir.values import GlobalView, Value
from shardwright.program import repeated, scan
from shardwright.xla import is_known, splat

MOST_ROUNDS = 10_000  # of a loop that is unrolled


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
        unrolled = known and (block.args[0].uses or not _on_tensors(op.operands[3:]))
        if isinstance(self.view, GlobalView) or not (unrolled or self._in_step(op)):
            with located(self.source.line_of(op)), reader.blamed(op):
                return self._looped(op, block, (lower, upper, step), carried, known)
        if not known:
            raise self.source.error(
                "The bounds of the loop differ between devices or depend on data, and collectives in it are walked in step "
                "with another branch. Use constants, or move the loop out of the branch.",
                op,
            )
        rounds = range(int(lower), int(upper), int(step))
        if len(rounds) > MOST_ROUNDS:
            raise self.source.error(
                f"The loop has {len(rounds):,} rounds; in the local view at most {MOST_ROUNDS:,} are unrolled.", op
            )
        for at in rounds:
            carried = yield from reader.block(block, [splat(at, (), lower.dtype), *carried])
        return carried

    def _in_step(self, op: Operation) -> bool:
        """Whether collectives of a loop must meet those of another branch, so that the loop is unrolled."""
        return bool(self.reader.in_step) and any(True for _ in self.reader.collectives(op))

    def _looped(self, op: Operation, block: Block, bounds: Any, carried: list[Value], known: bool) -> list[Value]:
        """A loop of the program."""
        lower, upper, step = bounds

        def body(at: Value, values: Sequence[Value]) -> tuple[Value, ...]:
            return self._run(block, [at, *values])

        start = self.reader.lifted(carried)
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

        _, made = self._repeated(op, again, once, (self.view.lifted(lower), start))
        return list(made)

    def _run(self, block: Block, values: Sequence[Value]) -> tuple[Value, ...]:
        return self.reader.lifted(self.reader.driven(self.reader.block(block, values)))

    # -- scf.while ----------------------------------------------------------------------------------------------------

    def conditional(self, op: Operation) -> Walk:
        """scf.while: the first region gives a condition and values, the second takes these to the next round."""
        carried = [self.reader.values[x] for x in op.operands]
        before, after = (region.block for region in op.regions)
        in_step = self._in_step(op)
        if in_step or not (isinstance(self.view, GlobalView) or _on_tensors(op.operands)):
            for _ in range(MOST_ROUNDS + 1):  # rounds whose condition is known
                test, *values = yield from self.reader.block(before, carried)
                if not is_known(test):
                    break
                if not bool(test):
                    return values
                carried = yield from self.reader.block(after, values)
            else:
                raise self.source.error(
                    f"The loop has more than {MOST_ROUNDS:,} rounds; in the local view at most that many are unrolled.",
                    op,
                )
            if in_step:
                raise self.source.error(
                    "The condition of the loop depends on data, and collectives in it are walked in step with another branch. "
                    "Use scf.for with constant bounds, or move the loop out of the branch.",
                    op,
                )
        with located(self.source.line_of(op)), self.reader.blamed(op):
            return self._while(op, carried)

    def _while(self, op: Operation, carried: Sequence[Value]) -> list[Value]:
        before, after = (region.block for region in op.regions)
        last = before.last_op
        assert last is not None
        if list(last.operands[1:]) == list(before.args):  # what goes on is what came in
            made = self._repeated(
                op,
                lambda state: self._run(before, state)[0],
                lambda state: self._run(after, state),
                self.reader.lifted(carried),
            )
            return list(made)

        def once(state: Any) -> Any:
            return self._run(before, self._run(after, state[1:]))

        return list(self._repeated(op, lambda state: state[0], once, self._run(before, carried))[1:])

    def _repeated(self, op: Operation, again: Any, once: Any, start: Any) -> Any:
        """A loop whose rounds depend on data; a collective in it must be between devices that leave it together."""

        def test(state: Any) -> Any:
            flag = again(state)
            varies = getattr(flag, "varies", ())
            if not is_uniform(op) and any(not {*varies}.isdisjoint(over) for _, over in self.reader.collectives(op)):
                raise self._refused(op)
            return flag

        return repeated(self.view.trace, test, once, start, is_uniform(op))

    def _refused(self, op: Operation) -> MLIRError:
        shown = path_shown(self.source, (inner for inner, _ in self.reader.collectives(op)))
        error: MLIRError = self.source.error(
            f"Devices may leave this loop after different numbers of rounds, and its rounds come to collectives, so devices "
            f"would wait for one another for ever. One more round: {shown}. Leaving: none. Reduce the condition over the axes "
            f"of these collectives, or move the collectives out of the loop.",
            op,
        )
        return error


def _on_tensors(values: Sequence[Any]) -> bool:
    """Whether all values are tensors: an index that a loop carries may be known in every round."""
    return all(isinstance(value.type, b.TensorType) for value in values)
