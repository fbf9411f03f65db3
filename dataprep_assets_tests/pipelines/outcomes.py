"""What a run of Dagster in this process came to, for tests."""

import dagster as dg


def failure_of(outcome: dg.ExecuteInProcessResult) -> str:
    """The errors of every failed step of a run, in one text."""
    texts = []
    for event in outcome.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            texts.append(str(data.error) + str(data.user_failure_data))
    return " ".join(texts)
