"""What DA-DPFL shows beside what every run does: votes, drift and prunings."""

from fl.keys import Figure, Key, Level

KEYS = (
    Key("votes", "clients that vote to prune; null where no votes were taken", unit="share", null=True,
        of="vote", sums="mean", shown="votes {:.2f}"),
    Key("drift_mean", "Delta_t, mean over clients", null=True, of="drift", sums="mean"),
    Key("drift_ratio_mean", "drift_ratio, mean over clients; null in the first round", null=True,
        of="drift_ratio", sums="mean"),
    Key("pruned", "how many clients pruned", unit="clients", of="pruned", sums="sum", shown="pruned {}"),
    Key("t_star", "first pruning time, null before it is known", unit="round", null=True),
    Key("max_wait", "N of this round", unit="clients", null=True),
    Key("drift", "Delta_t: how far it is from its first weights", where="client", null=True),
    Key("drift_ratio", "|Delta_t - Delta_{t-1}| / Delta_first", where="client", null=True),
    Key("vote", "whether it votes to prune", where="client", null=True),
    Key("pruned", "whether it pruned", where="client"),
    Key("t_star", "of the last round", unit="round", where="run", null=True, of="t_star", sums="last",
        mark="t* = {}"),
    Key("prune_rounds", "in which clients pruned", unit="rounds", where="run", of="pruned", sums="rounds",
        shown="prunings in rounds", mark="pruning"),
)  # fmt: skip
FIGURES = (
    Figure(
        key="votes",
        title="Votes to prune",
        text="A client votes once its drift has nearly settled. Prunings follow t*, the first majority.",
        y="share of clients (%)",
        curve="votes to prune",
        scale="share",
        missing="no votes were taken.",
    ),
    Figure(
        key="drift_ratio_mean",
        title="How much drift still moves",
        text="Change of a client's drift since the round before, as a share of its first drift.",
        y="change / first drift (log)",
        scale="log",
        missing="drift was not followed, or there is one round only.",
    ),
    Figure(
        key="drift_mean",
        title="Drift",
        text="How far a client's trained weights are from its first ones.",
        y="drift (norm, no unit)",
        missing="drift was not followed.",
    ),
)
LEVELS = (
    Level(key="density_mean", value=lambda cfg: 1 - cfg.target_sparsity, text="target {:g}"),
    Level(key="votes", value=lambda cfg: cfg.delta_v, text="majority {:.0%}"),
    Level(key="drift_ratio_mean", value=lambda cfg: cfg.delta_pr, text="votes below {:g}"),
)
