"""The native steps of a convolution: planes, forward, and the gradients of bias, weight and input."""

from sparse_engine.program import steps
from sparse_engine.program.cpu.convs import ConvPlan
from sparse_engine.program.cpu.listing import NONE, List
from sparse_engine.program.cpu.memory import Buffer
from sparsefl.kernels.native import table
from sparsefl.kernels.sparse_conv import joined, split


def forward(made: List, i: int, step: steps.Conv) -> None:
    plan, kernel = made.convs[i], made.convs[i].kernels.forward
    x, y = made.value[step.x], made.new(step.y)
    made.value[step.y] = y
    bias = NONE if step.bias is None else step.bias
    name, isa = split(kernel)
    if name == "winograd":
        scratch = Buffer(plan.weights, "weight")
        how = {"images": plan.images("forward"), "filter": plan.filter("forward"), "on": table(isa)}
        made.add("Winograd", conv=plan, **how, x=x, y=y, scratch=scratch, bias=bias)
    else:
        planes = _planes(made, plan, x, kernel)
        direction = plan.direction("forward", kernel)
        ordered = _ordered(plan, "forward", kernel)
        fields = {"planes": planes, "y": y, "scratch": ordered, "bias": bias}
        made.add("ConvApply", conv=plan, direction=direction, **fields)
    if step.relu:
        made.add("Relu", x=y, other=NONE, y=y, size=made.size(step.y))


def _planes(made: List, plan: ConvPlan, x: Buffer, kernel: str) -> Buffer:
    """The input of a convolution in planes. Backward makes them again: kept from the forward pass, they would
    be a third of a training's memory."""
    shape = plan.planes("forward", kernel)
    if shape.is_input and not plan.pairs(kernel):
        return x
    return _copied(made, plan, "forward", kernel, x)


def _copied(made: List, plan: ConvPlan, way: str, kernel: str, x: Buffer) -> Buffer:
    """`x` in the planes of a kernel. The dense one on bfloat16 wants pairs of channels side by side."""
    shape, pairs_of = plan.planes(way, kernel), 0
    if plan.pairs(kernel):
        step = plan.step.geometry
        pairs_of = step.in_channels if way == "forward" else step.out_channels
        planes = Buffer(shape.size, f"planes of pairs of {plan.step.name}")
    else:
        planes = made.images(shape.size, f"planes of {plan.step.name}")
    made.add("ToPlanes", planes=shape.native, x=x, to=planes, pairs_of=pairs_of)
    return planes


def _ordered(plan: ConvPlan, way: str, kernel: str) -> Buffer | int:
    """Memory for the weights in the order of a direction; NONE for stored ones, whose number is the model's:
    theirs is behind the workspace (Run::ordered)."""
    if split(kernel)[0] != "dense":
        return NONE
    shape = plan.step.geometry
    rows, channels = shape.out_channels, shape.in_channels
    if way == "backward":
        rows, channels = channels, rows
    taps = (-(-channels // 2) if plan.pairs(kernel) else channels) * shape.taps
    return Buffer(-(-rows // 3) * 3 * taps, "ordered weights")


def backward(made: List, i: int, step: steps.Conv) -> None:
    plan = made.convs[i]
    dy = made.masked(step) if step.relu else made.gradient[step.y]
    if made.trains and step.bias is not None:
        channels = step.geometry.out_channels
        made.add("BiasGradient", dy=dy, channels=channels, size=made.size(step.y) // channels, bias=step.bias)
    if made.trains or step.weight.segment is not None:
        _weight_gradient(made, step, plan, dy)
    if made.needed[0]:
        dx = made.new(step.x, "gradient")
        _input_gradient(made, plan, dy, dx)
        made.contribute(step.x, dx)


def _weight_gradient(made: List, step: steps.Conv, plan: ConvPlan, dy: Buffer) -> None:
    grow = made.mode == "grow"
    score = made.mode == "last" and step.weight.segment is not None
    kernel = plan.kernels.growth if grow or score else plan.kernels.weight_gradient
    x, direction = made.value[step.x], NONE
    name, isa = split(kernel)
    walk = kernel if name == "sparse" else joined("offsets", isa)
    if name != "winograd":
        x = _planes(made, plan, x, walk)
        direction = plan.direction("forward", walk)
    words = -(-plan.weights // 64)
    size = {"sparse": 0}.get(name, -(-plan.weights // 16) * 16 + (4 * words if grow else 0))
    made.add(
        "WeightGradient",
        conv=plan,
        kernel=plan.kernel_number(kernel),
        on=table(isa),
        direction=direction,
        images=plan.images("forward"),
        tiles=plan.tiles(walk),
        x=x,
        dy=dy,
        scratch=Buffer(size, f"gradient of {step.weight.name}"),
        grow=grow,
        score=score,
    )


def _input_gradient(made: List, plan: ConvPlan, dy: Buffer, dx: Buffer) -> None:
    kernel = plan.kernels.input_gradient
    name, isa = split(kernel)
    if plan.scatters:
        direction = plan.direction("forward", kernel)
        made.add("LinearInputGradient", conv=plan, direction=direction, dy=dy, dx=dx)
    elif name == "winograd":
        scratch = Buffer(plan.weights, "weight")
        how = {"images": plan.images("backward"), "filter": plan.filter("backward"), "on": table(isa)}
        made.add("Winograd", conv=plan, **how, x=dy, y=dx, scratch=scratch, bias=NONE)
    else:
        planes = dy
        if plan.pairs(kernel) or not plan.planes("backward", kernel).is_input:
            planes = _copied(made, plan, "backward", kernel, dy)
        direction = plan.direction("backward", kernel)
        ordered = _ordered(plan, "backward", kernel)
        fields = {"planes": planes, "y": dx, "scratch": ordered, "bias": NONE}
        made.add("ConvApply", conv=plan, direction=direction, **fields)
