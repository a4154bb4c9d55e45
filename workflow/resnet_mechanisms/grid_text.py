"""Which networks, data and seeds a figure shows, in one readable sentence for its caption."""

# The section of `gradients` that holds the settings of a figure without networks of the grids.
SETTINGS = {
    "sg_theorems": "theorems",
    "sg3_coactivation": "activations",
    "sg4_activation_patterns": "activations",
    "sg_paths": "paths",
    "sg_linear_regions": "linear_regions",
    "sg1_gradients": "toy",
    "sg2_autocorrelation": "toy",
    "sg5_effective_rank": "effective_rank",
}
MOST = 8  # values that are listed one by one


def shows(study, name):
    """One sentence on what figure `name` of a config.Study shows."""
    if study.figures[name]:
        return networks(study, study.figures[name])
    if name in SETTINGS:
        return f"Random networks: {settings(study.gradients[SETTINGS[name]])}."
    if name == "unconstrained_jacobians":
        return f"A model of free matrices: {settings(study.unconstrained_jacobians)}."
    return f"All tables of this study: {networks(study, list(study.networks))}"


def networks(study, paths):
    """The networks with these paths: values of each key, and how many there are."""
    # Sorted, since the grids of a second configuration file come before those of the first.
    known = {path: study.networks[path] for path in sorted(paths) if path in study.networks}
    own = [path for path in paths if path not in known]
    found = list(known.values())
    texts = [f"own networks {_listed(own)}"] if own else []
    if found:
        of = {key: list(dict.fromkeys(n[key] for n in found)) for key in found[0] if key != "seeds"}
        seeds = sorted({seed for network in found for seed in network["seeds"]})
        texts += [
            f"{_listed(of['dataset'])}, {_listed(of['classes'])} classes",
            f"{_listed(of['type'])}, {_listed(of['skip'])}",
            f"{_listed(of['depth'])} blocks",
            f"width {_listed(of['width'])}",
            f"recipe {_listed(of['recipe'])}",
            f"seeds {_listed(seeds)}",
        ]
    trained = sum(len(network["seeds"]) for network in found) + len(own)
    number = "1 network" if trained == 1 else f"{trained} networks of {len(paths)} configurations"
    return "; ".join(texts) + f" ({number})." if texts else "no networks."


def settings(section):
    """Keys and values of a section of the config."""
    return "; ".join(f"{key.replace('_', ' ')} {_listed(value)}" for key, value in section.items())


def _listed(values):
    """`2, 4, 8 and 16`; of many numbers their range, of many names the first ones."""
    values = values if isinstance(values, list) else [values]
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        values = sorted(values)
        if len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
            return f"{values[0]} to {values[-1]}"
        if len(values) > MOST:
            return f"{values[0]} to {values[-1]} ({len(values)} values)"
    words = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    if len(words) > MOST:
        words = [*words[: MOST - 1], f"{len(words) - MOST + 1} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
