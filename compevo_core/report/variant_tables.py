"""The tables of the ablation and the controls of one data set, in the order they are shown in.

What belongs here: which tables there are, for every scope that variants were scored on. What does
not: the tables themselves (``report.result_tables``, ``report.provenance_tables``).
"""

from compevo_core.report.inputs import ReportInputs
from compevo_core.report.provenance_tables import variant_test_table
from compevo_core.report.result_tables import ablation_table, control_table
from compevo_core.report.rows import list_scopes, select_pooled
from compevo_core.report.tables import Table


def list_variant_tables(inputs: ReportInputs, dataset: str) -> list[Table]:
    """Return the variants' errors by scope, then their paired tests with the full method."""
    tables: list[Table | None] = []
    # One scope a table: errors on different windows do not compare.
    for name, subset in list_scopes(select_pooled(inputs.rows, ablation=True)):
        if name == dataset:
            tables += [
                ablation_table(inputs.rows, dataset, subset),
                control_table(inputs.rows, dataset, subset),
            ]

    tables.append(variant_test_table(inputs.paired, dataset))
    return [table for table in tables if table]
