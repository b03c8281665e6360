"""comparison.tex: the cells of the table, escaped, and nothing that ends a comment or a row too early."""

import re

import comparisons
import pytest

from fl.compare import latex, report, table

EVIL = "50% \\input{x}\n\\end{document} & #1 $a_b$ ~^ {}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("tex") / "all"
    accuracies = {"da_dpfl": [[0.2, 0.6], [0.3, 0.7]], "b": [[0.1, 0.5]]}
    comparisons.make(path, accuracies, ["b:training.lr=0.25"], target=0.55)
    told = report.write(path).to_json()
    return told, (path / "comparison.tex").read_text()


def test_the_tables_have_the_cells_of_the_others(made):
    told, text = made
    bodies = re.findall(
        r"\\begin{tabular}{(lr+)}\n\\toprule\n(.*?)\\bottomrule\n\\end{tabular}", text, re.DOTALL
    )
    assert len(bodies) == 2
    for (columns, body), shown in zip(bodies, (table.results(told), table.to_target(told)), strict=True):
        head, *rows = body.replace("\\midrule\n", "").splitlines()
        assert len(columns) == len(shown.head) and len(rows) == len(shown.rows)
        for line, cells in zip([head, *rows], [shown.head, *shown.rows], strict=True):
            assert line.endswith(r" \\") and len(re.split(r"(?<!\\)&", line)) == len(cells)
    assert r"da\_dpfl & 2 & 65.00 \(\pm\) 7.07 &" in text and r"best accuracy, \%" in text
    assert "% differs: learning rate: da_dpfl 0.1; b 0.25\n" in text


def test_no_line_but_tables_and_comments(made):
    for line in made[1].splitlines():
        assert line.startswith(("%", "\\")) or line.endswith(r" \\"), line


def test_letters_of_latex_are_escaped():
    assert latex.escaped("a_b 5% & #{}$") == r"a\_b 5\% \& \#\{\}\$"
    assert latex.escaped("\\x~^<>|") == (
        r"\textbackslash{}x\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\textbar{}"
    )
    assert latex.escaped("3 µJ ± 1\nx") == r"3 \(\mu\)J \(\pm\) 1 x"


def test_a_hostile_name_stays_in_its_comment(made):
    told, _ = made
    text = latex.text(told | {"name": EVIL})
    assert text.splitlines()[0].startswith("% 50% ") and "\n\\end{document}" not in text
