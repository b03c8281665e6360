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
    if shape.is_input:
        return x
    planes = Buffer(shape.size, f"planes of {plan.step.name}")
    made.add("ToPlanes", planes=shape.native, x=x, to=planes)
    return planes


def _ordered(plan: ConvPlan, way: str, kernel: str) -> Buffer | int:
    """Memory for the weights in the order of a direction; NONE for stored ones, whose number is the model's:
    theirs is behind the workspace (Run::ordered)."""
    if split(kernel)[0] != "dense":
        return NONE
    rows = plan.step.geometry.out_channels if way == "forward" else plan.step.geometry.in_channels
    return Buffer(-(-rows // 3) * 3 * (plan.weights // rows), "ordered weights")


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
    if name != "winograd":
        x = _planes(made, plan, x, kernel)
        direction = plan.direction("forward", kernel if name == "sparse" else joined("offsets", isa))
    words = -(-plan.weights // 64)
    size = {"sparse": 0}.get(name, -(-plan.weights // 16) * 16 + (4 * words if grow else 0))
    made.add(
        "WeightGradient",
        conv=plan,
        kernel=plan.kernel_number(kernel),
        on=table(isa),
        direction=direction,
        images=plan.images("forward"),
        tiles=plan.tiles(kernel),
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
        shape = plan.planes("backward", kernel)
        if not shape.is_input:
            planes = Buffer(shape.size, "planes of a gradient")
            made.add("ToPlanes", planes=shape.native, x=dy, to=planes)
        direction = plan.direction("backward", kernel)
        ordered = _ordered(plan, "backward", kernel)
        fields = {"planes": planes, "y": dx, "scratch": ordered, "bias": NONE}
        made.add("ConvApply", conv=plan, direction=direction, **fields)
