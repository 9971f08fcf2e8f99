"""The rules as a table for the documents."""

from __future__ import annotations

from recovery.rules.categories import CATEGORIES, NEAREST
from recovery.rules.rule import SAID, EvidenceClass, RuleSet


def rule_table(rules: RuleSet) -> str:
    """One line a rule that concludes something, by file and place, as Markdown."""
    lines = ["| rule | evidence | category | remedy | blame | says |", "|---|---|---|---|---|---|"]
    for rule in sorted(rules.rules, key=lambda each: each.order):
        if rule.is_mark or rule.remedy is None or rule.blame is None:
            continue
        otherwise = sorted({str(case.remedy) for case in rule.when if case.remedy not in {None, rule.remedy}})
        remedy = f"{rule.remedy}{f' (else {", ".join(otherwise)})' if otherwise else ''}"
        lines.append(
            f"| `{rule.id}` | {rule.evidence_class.name.lower()} {rule.specificity} | {rule.category} "
            f"| {remedy} | {rule.blame} | {SAID.sub('N', rule.reason).replace('|', '/')} |"
        )
    return "\n".join(lines) + "\n"


def exit_table(rules: RuleSet) -> str:
    """How a machine comes back that a rule took out."""
    lines = ["| way back | what must happen | rules |", "|---|---|---|"]
    for name, text in sorted(rules.exits.items()):
        used = sum(rule.exit == name and rule.isolates for rule in rules.rules)
        lines.append(f"| {name} | {text} | {used} |")
    return "\n".join(lines) + "\n"


def category_table() -> str:
    """Every category, and the word of the labelled cases where ours is another."""
    lines = ["| category | what | in the labelled cases |", "|---|---|---|"]
    lines += [f"| {name} | {text} | {NEAREST.get(name, 'the same')} |" for name, text in CATEGORIES.items()]
    return "\n".join(lines) + "\n"


def class_table() -> str:
    """Evidence classes, strongest first."""
    words = {
        EvidenceClass.CHECK: "a failed check of the machine, or of nodes in pairs",
        EvidenceClass.COMPARED: "machines or releases compared: it fails here, and its like do the same without it",
        EvidenceClass.DEVICE: "kernel and device errors: Xid, SXid, ECC, row remap, RAS, PCIe, links, memory kills",
        EvidenceClass.NODE: "node conditions and what comes from outside the node",
        EvidenceClass.END: "how the container ended, in the words of kubelet, scheduler or registry",
        EvidenceClass.LOG: "a log line that names its cause",
        EvidenceClass.HINT: "a log line or finding that names no cause by itself",
        EvidenceClass.METRIC: "the shape of numbers: suspicion, which by itself never isolates",
        EvidenceClass.SYMPTOM: "says that somebody else failed",
        EvidenceClass.BENIGN: "looks like a failure and is none",
    }
    lines = ["| class | what |", "|---|---|"]
    lines += [f"| {each.name.lower()} | {words[each]} |" for each in sorted(EvidenceClass, reverse=True)]
    return "\n".join(lines) + "\n"
