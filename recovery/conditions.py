"""What a node's conditions and labels say about its hardware, by their values and reasons rather than their names.

Every platform names its conditions as it likes; that a value says *unhealthy*, or waits for a replacement, is the same
everywhere. Source: Kubernetes conventions for conditions; node agents of clouds and vendors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from recovery.observed import is_well

MAX_CONDITIONS = 64
_MAX_LENGTH = 400


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_TOLD = re.compile(
    r"(?:(?:node ?)?(?:label|annotation|taint|condition|status"
    r"|state)s?: ?)?([a-z][\w./ -]{0,100}?) ?(?:=|: ) ?([^:,;=]{1,80})(.*)",
    re.IGNORECASE | re.DOTALL,
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[a-z]+")
_COUNT = re.compile(
    r"\b(\d{1,4}) ?(?:of|/|out of|<) ?(?:the )?(\d{1,4})\b|expected:? (\d{1,4})[^0-9]{1,20}(?:found|got"
    r"|observed|detected|have|sees?):? (\d{1,4})\b"
    r"|\ballocatable:? (\d{1,4})\b[^0-9]{1,20}capacity:? (\d{1,4})\b",
    re.IGNORECASE,
)
_OF_DEVICES = re.compile(
    r"\b(?:gpus?|devices?|chips?|cards?|accelerators?|neuron ?cores?|hpus?|npus?|tpus?)\b", re.IGNORECASE
)

_ACCELERATOR = _set(
    "gpu gpus nvidia cuda amd rocm accelerator accelerators accelerated accel accels chip chips tpu tpus neuron"
    " trainium inferentia trn hpu hpus gaudi habana npu npus ascend xpu xpus device devices card"
    " cards hbm dcgm ipu wafer mi"
)
_FABRIC = _set("nvlink nvswitch xgmi fabricmanager c2c scaleup ualink")
_ADAPTER = _set(
    "nic nics rdma hca hcas infiniband ib efa roce mlx adapter adapters transceiver optic optics"
    " cable hsn cxi opa"
)
_HOST = _set(
    "node machine host hardware server instance health healthcheck diagnosis diagnostics diag"
    " repair bmc board cpu"
)
#: Parts of a node that have conditions and rules of their own.
_OTHERS = _set(
    "pressure disk memory kubelet network networking storage runtime containerd docker clock"
    " kernel filesystem pid dns cni volume quota lease heartbeat swap reserved backup agent"
    " exporter monitor monitoring plugin operator pods job jobs app application deployment probe"
    " webhook task tasks prolog epilog script"
)
#: Programs that run on a node; that one of them fails says nothing of the hardware it serves.
_SOFTWARE = _set(
    "exporter monitor monitoring plugin operator agent autoscaler daemon daemonset driver upgrade app application"
    " deployment webhook controller scheduler"
)
_MEMORY = _set("hbm ecc dbe uncorrectable uncorrected row remap dram sram vram doublebit")
_GOOD = _set(
    "healthy health ok okay ready good available passed pass usable operational working normal fit sound"
)
_HARD = _set(
    "unhealthy nothealthy bad failed fail failing failure faulty fault broken defective dead rma"
    " unusable condemned lost missing repair repairs replacement replace replaced inoperable"
    " malfunction unrecoverable nok uncorrectable abnormal critical error fatal alarm offline"
)
_SOFT = _set(
    "degraded degrading warning warn marginal suspect predicted predictive foretold wear worn atrisk"
)
_PLANNED = _set(
    "maintenance scheduled schedule planned plan window upgrade upgrading update updating firmware"
    " progress running checking check checks testing test validating validation starting upcoming"
    " drill notice simulated"
)
#: Verdicts as a value only: in a type or reason they speak of what is counted, or of a code.
_NO_VERDICT = _set("error critical fatal alarm")
_OUT_OF_SERVICE = re.compile(
    r"\bout ?of ?service\b|\bnot ?ready\b|\btaken out\b|\bawait\w{0,3} (?:service|repair|replacement)\b"
)
_DUE = _set("pending required needed due awaiting waiting open requested")
_TO_BE_DONE = _set("replace replaced replacement repair repairs")
_CORRECTED = _set("corrected correctable")
_MUST_REBOOT = re.compile(
    r"\b(?:re-?boot|reset|power ?cycle)\w* (?:is )?(?:required|needed|pending|due|necessary)"
    r"|\b(?:needs?|requires?|required|pending"
    r"|await\w{0,3}|must) (?:a )?(?:node |gpu |device )?(?:re-?boot|reset|power ?cycle)"
)
_CODE = re.compile(
    r"(?:\bxids?|error_?code|err_?code|\bcode)s?[^a-z0-9]{1,4}(?:xid )?(\d{1,3})\b(?![.:]\d)", re.IGNORECASE
)
_ADVICE = re.compile(
    r"(?:recommended_?|suggested_?|required_?)? ?(?:action|recommendation|advice|remedy)[^a-z0-9]{1,4}"
    r"((?:none|no[ _-]?action|nothing|ignore|restart[ _-]?(?:app|process|job|workload|pod|container)"
    r"|restart[ _-]?(?:bm|vm|node|host)|restart|reset|reboot|replace|rma"
    r"|component[ _-]?reset|drain|power[ _-]?cycle)\w{0,12})",
    re.IGNORECASE,
)
_ADVICES: Mapping[str, str] = {
    "restart_bm": "reset", "restart_vm": "reset", "restart_node": "reset", "restart_host": "reset",
    "restart": "restart", "none": "none", "no": "none", "ignore": "none", "replace": "replace", "rma": "replace",
}  # fmt: skip
_THERMAL = re.compile(r"thermal|temperature|overheat|throttl|slow_?down|power ?brake|too hot", re.IGNORECASE)
_NO = _set("no not none never non without")


def hardware_verdict(conditions: Sequence[str]) -> tuple[str, bool]:
    """The part of the machine that its platform calls bad, and whether it says so outright.

    Returns:
        One of "gpu", "gpu-memory", "gpu-fabric", "nic", "host", or "" where nothing is called bad; True when it is bad
        or to be replaced, False when it is only degraded or foretold to fail.
    """
    best = ("", False)
    for condition in conditions[:MAX_CONDITIONS]:
        part, is_hard = _read(condition[:_MAX_LENGTH])
        if part and (not best[0] or (is_hard and not best[1])):
            best = (part, is_hard)
    return best


def inner_error(conditions: Sequence[str]) -> dict[str, float | str | bool]:
    """What a condition carries within: the number of an error of a GPU, what it asks for, and whether it is of heat.

    Returns:
        "code": an Xid; "advice": "none", "restart", "reset" or "replace"; "thermal": True. Absent where not told.
    """
    found: dict[str, float | str | bool] = {}
    for condition in conditions[:MAX_CONDITIONS]:
        told = condition[:_MAX_LENGTH]
        if is_well(told):
            continue
        if "code" not in found and (code := _CODE.search(told)):
            found["code"] = float(code[1])
        if "advice" not in found and (advice := _ADVICE.search(told)):
            asked = advice[1].lower().replace(" ", "_").replace("-", "_")
            found["advice"] = next(
                (word for begin, word in _ADVICES.items() if asked.startswith(begin)), "reset"
            )
        if _THERMAL.search(told):
            found["thermal"] = True
    return found


def _read(condition: str) -> tuple[str, bool]:
    told = condition.strip()
    if told.lower().startswith("event"):
        return _counted(told)
    found = _TOLD.fullmatch(told)
    if found is None:
        return _counted(told)
    kind, value, rest = (_words(group) for group in found.groups())
    told_words = (*kind, *value, *rest)
    every = {
        *told_words,
        *(one + two for one, two in pairwise(told_words)),
    }  # NVSwitch is written NvSwitch, too
    if set(_words(found[1].rpartition("/")[2])) & _SOFTWARE:
        return _counted(told)
    part = _part(kind, every)
    if not part:
        return "", False
    verdict = _judged(kind, value, rest, " ".join((*value, *rest)))
    if verdict is None:
        return _counted(told)
    if every & _CORRECTED and not every & {"rma", "replacement", "repair"}:
        return ("", False) if verdict else (part, False)
    return part, verdict


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(_HUMP.sub(" ", text).lower()))


def _part(kind: Sequence[str], every: set[str]) -> str:
    if every & _FABRIC:
        return "gpu-fabric"
    if every & _ACCELERATOR:
        return "gpu-memory" if every & _MEMORY else "gpu"
    if every & _ADAPTER:
        return "nic"
    if every & _OTHERS:
        return ""
    return "host" if set(kind) & _HOST else ""


def _judged(kind: Sequence[str], value: Sequence[str], rest: Sequence[str], said: str) -> bool | None:
    """Whether it is bad (True) or degraded (False); None where it is neither."""
    if set(kind) & {"maintenance", "scheduled", "upgrade", "update"}:
        return None
    told = set(value)
    if told & {"true", "false", "unknown"}:
        is_good_kind = bool(set(kind) & _GOOD) and not set(kind) & (_HARD | _SOFT)
        if "unknown" in told or is_good_kind is ("true" in told):
            return None
        named = kind if not is_good_kind else ()
        if is_good_kind and not set(rest) & _PLANNED:
            return True
        return _named(_certain((*named, *rest)), said)
    if told & _DUE and set(kind) & (_TO_BE_DONE | {"reboot", "reset", "rma"}):
        return True
    if told & _GOOD and not told & (_HARD | _SOFT | _NO):
        return None
    return _named((*value, *_certain(rest)), said)


def _certain(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in _NO_VERDICT)


def _named(words: Sequence[str], said: str) -> bool | None:
    if _OUT_OF_SERVICE.search(said):
        return True
    if _MUST_REBOOT.search(said) and not set(words) & _PLANNED:
        return True
    hard = [n for n, word in enumerate(words) if word in _HARD]
    hard = [n for n in hard if not set(words[max(0, n - 2) : n]) & _NO]
    if hard:
        is_word_of_plan = {words[n] for n in hard} <= _TO_BE_DONE
        return None if is_word_of_plan and set(words) & _PLANNED else True
    if any(word in _GOOD and set(words[max(0, n - 1) : n]) & _NO for n, word in enumerate(words)):
        return True
    return False if set(words) & _SOFT and not set(words) & _PLANNED else None


def _counted(told: str) -> tuple[str, bool]:
    """Fewer devices than there should be."""
    for match in _COUNT.finditer(told):
        first, second = (int(group) for group in match.groups() if group)
        less, all_of = (second, first) if match[3] else (first, second)
        if 0 <= less < all_of <= 1024 and _OF_DEVICES.search(told):
            return "gpu", True
    return "", False
