"""Test the labels on the cells of tables, which phones show."""

from __future__ import annotations

from website.phone_tables import with_labels

HEAD = "<table>\n<thead>\n<tr>\n<th>a &amp; b</th>\n<th><code>c</code></th>\n<th></th></tr></thead>"
ROW = "<tr>\n<td>1</td>\n<td style='text-align: left;'>2</td>\n<td>3</td>\n</tr>"


def test_cells_have_the_headers_of_their_columns() -> None:
    page = with_labels(f"<p>x</p>{HEAD}<tbody>{ROW}{ROW}</tbody></table><table><tr><td>")

    assert page.startswith("<p>x</p><table data-rows>")
    assert page.count('<td data-label="a &amp; b">1</td>') == 2
    assert page.count("""<td data-label="c" style='text-align: left;'>2</td>""") == 2
    assert page.count('<td data-label="">3</td>') == 2
    assert page.endswith("</table><table><tr><td>")


def test_narrow_tables_stay_tables() -> None:
    narrow = "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>"

    assert with_labels(narrow) == narrow
