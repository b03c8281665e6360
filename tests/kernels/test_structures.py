"""The native code's structures in Python: fields by name, all of them, read back where they were written."""

import re
from operator import attrgetter
from pathlib import Path

import pytest
import torch

import sparsefl.kernels
from sparsefl.kernels import native
from sparsefl.kernels.sparse_conv._cpu_planes import Planes

CSRC = Path(sparsefl.kernels.__path__[0]) / "csrc"
STRUCTURES = {
    "Segments": "count starts dense",
    "Packed": "words values nnz",
    "ConvPlanes": (
        "channels height width batch stride phases top left rows columns lanes chunks plane_size high tile"
    ),
    "ConvWeights": "rows visits starts order at offsets",
    "ConvDense": "rows taps block offsets",
    "ConvOutput": "height width batch plane_size row_size column_size",
    "ConvImages": "height width batch out_height out_width top left",
    "NormShape": "channels groups size batch",
    "Dropout": "p seed step",
    "Moves": "rows columns mirrored padding",
    "PoolAxis": "in out kernel stride padding",
    "program.Arenas": "words starts offsets values rest integers",
    "program.Weight": "segment at out in taps blocks entries",
}
LISTS = {"blocks"}  # fields that are lists of numbers
STEPS = (
    "ToPlanes ConvApply LinearInputGradient Winograd WeightGradient GroupNorm GroupNormBackward BatchNorm "
    "BatchNormBackward MaxPool MaxPoolBackward AveragePool Relu ReluBackward Add BiasGradient Loss Correct "
    "Drop"
).split()
pytestmark = pytest.mark.skipif(not native.built(), reason="the native kernels are not built")


@pytest.mark.parametrize("name", STRUCTURES)
def test_fields_are_written_and_read_by_name(name):
    structure = attrgetter(name)(native.extension())
    given = {field: i + 1 for i, field in enumerate(STRUCTURES[name].split())}
    given |= {field: [3, 4] for field in LISTS & given.keys()}
    for order in (list(given), list(reversed(given))):
        made = structure(**{field: given[field] for field in order})
        assert {field: getattr(made, field) for field in given} == given


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_missing_field_an_unknown_one_and_one_without_a_name_are_refused(name):
    structure = attrgetter(name)(native.extension())
    given = dict.fromkeys(STRUCTURES[name].split(), 1)
    given |= {field: [1] for field in LISTS & given.keys()}
    for wrong in (dict(list(given.items())[:-1]), given | {"colour": 1}, {}):
        with pytest.raises(TypeError):
            structure(**wrong)
    with pytest.raises(TypeError):
        structure(*given.values())


@pytest.mark.parametrize("name", [*STEPS, "Pass", "Direction", "Conv", "Program"])
def test_parts_of_programs_need_all_of_their_fields(name):
    part = getattr(native.extension().program, name)
    for wrong in ({}, {"x": 0}, {"colour": 1}):
        with pytest.raises(TypeError):
            part(**wrong)


def test_all_steps_are_steps_and_take_their_fields_by_name():
    program = native.extension().program
    assert all(issubclass(getattr(program, name), program.Step) for name in STEPS)
    found = {name for name, made in vars(program).items() if isinstance(made, type) and name != "Step"}
    assert {name for name in found if issubclass(getattr(program, name), program.Step)} == set(STEPS)
    program.Add(size=1, y=2, b=3, a=4)
    with pytest.raises(TypeError):
        program.Add(1, 2, 3, 4)


def test_the_planes_of_a_plan_are_made_once_and_have_its_fields():
    planes = Planes(*range(1, 16))
    assert planes.native is planes.native
    assert [getattr(planes.native, name) for name in STRUCTURES["ConvPlanes"].split()] == list(range(1, 16))


def test_a_structure_of_another_kind_is_refused():
    numbers, at = torch.zeros(4), torch.zeros(4).data_ptr()
    shape = native.extension().NormShape(channels=1, groups=1, size=1, batch=1)
    with pytest.raises(TypeError):
        native.extension().conv_planes(shape, native.pointer(numbers), at, 1)


@pytest.mark.skipif(not CSRC.is_dir(), reason="installed without sources")
def test_every_operation_of_the_list_is_bound():
    listed = re.findall(r"^SPARSE_OP\(\w+, (\w+), ", (CSRC / "core" / "ops.def").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed)) >= 39
    assert all(callable(getattr(native.extension(), op)) for op in listed)
