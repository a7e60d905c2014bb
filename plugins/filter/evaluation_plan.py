# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: evaluation_plan
short_description: Tell which evaluations run with which server settings
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - From the evaluations and efforts that are asked for, and the recipe that a host serves with, makes steps of efforts
    that need the same engine options, and tells what is in the way.
options:
  _input:
    description: Names of evaluations.
    type: list
    elements: str
    required: true
  efforts:
    description: Reasoning efforts.
    type: list
    elements: str
    required: true
  min_score:
    description: Lowest scores by evaluation.
    type: dict
    default: {}
  recipe:
    description: What the host serves, as C(release.json) says it. V(null) applies no settings.
    type: dict
  resolved:
    description: What the inventory asks for.
    type: dict
  table:
    description: The documents' settings, as rows of C(efforts), C(layouts) and C(settings).
    type: list
    elements: dict
    default: []
  own:
    description: Settings by effort that go before those.
    type: dict
    default: {}
  datasets:
    description: Names of the files that there are as local copies of data sets. V(null) where they are downloaded.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Set the plan of the evaluation
  ansible.builtin.set_fact:
    plan: >-
      {{ ['gpqa'] | trtllm.fleet.evaluation_plan(['low', 'high'], recipe=served, resolved=recipe, table=table) }}
"""

RETURN = r"""
_value:
  description: The steps, each with C(efforts) and C(settings), and the C(problems), sentences.
  type: dict
  sample:
    steps:
      - {efforts: [low], settings: {max_batch_size: 1024, max_num_tokens: 32768}}
    problems: []
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils import evaluation


def evaluation_plan(
    names: Sequence[str],
    efforts: Sequence[str],
    min_score: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    resolved: Mapping[str, Any] | None = None,
    table: Sequence[Mapping[str, Any]] = (),
    own: Mapping[str, Any] | None = None,
    datasets: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Steps and problems; the filter's documentation says more."""
    problems = list(evaluation.problems(names, efforts, min_score or {}))
    steps: list[dict[str, Any]] = [{"efforts": list(efforts), "settings": {}}]
    if problems:
        return {"steps": steps, "problems": problems}
    if datasets is not None and (lacking := evaluation.missing(names, datasets)):
        problems.append(
            f"evaluation_datasets_dir has no {', '.join(lacking)}. docs/how-to/evaluate.md says where they come from."
        )
    if recipe:
        changed = evaluation.drift(recipe, resolved or recipe)
        if changed:
            problems.append(
                f"The inventory asks for another {', '.join(changed)} than the host serves with. Run site.yml or"
                " rollout.yml first, or set evaluation_apply_settings to false, which evaluates what serves as it is."
            )
        try:
            steps = evaluation.steps(efforts, recipe, table, own or {})
        except evaluation.EvaluationError as error:
            problems.append(str(error))
    return {"steps": steps, "problems": problems}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"evaluation_plan": evaluation_plan}
