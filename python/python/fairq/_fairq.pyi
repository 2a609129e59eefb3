def points(scenario: str, is_json: bool, name: str, folder: str, over: str) -> list[tuple[str, str, str, int]]: ...
def run(
    scenario: str,
    name: str,
    folder: str,
    policies: str,
    seed: int | None,
    alone: bool,
    histograms: bool,
) -> str: ...
def policies() -> list[str]: ...
