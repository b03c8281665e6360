from pathlib import Path

from fl.run import keys, reference

PAGE = Path(__file__).parents[3] / "docs/reference/metrics.md"


def test_the_page_is_current():
    """If not: python -m fl.run.reference > docs/reference/metrics.md"""
    assert PAGE.read_text() == reference.text()


def test_every_key_has_a_row_of_six_cells():
    rows = [line for line in reference.text().splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(keys.table(where)) for where in keys.FILES)
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)
    assert any(row.endswith("| da_dpfl |") for row in rows)
