"""What a sentence about earlier attempts says of attempts themselves: how many, how they ended, and what was varied.

A number counts as repetition only where attempts are counted: many machines at one moment are one event, and many
members are the size of a job. One attempt that succeeded between the failures refutes that a retry is futile.
Source: DOMAIN section 7 ("across history", "across the cluster"); docs/design/verdicts.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from recovery.compared import fails, passes

#: Numbers that are told as places in a run, of one sentence.
MAX_PLACES = 16

_NODE = r"(?:node|host|machine|server|vm|instance|box|blade|hypervisor)"
_TRY = (
    r"(?:runs?|starts?|launch(?:es)?|resumes?|attempts?|restarts?|try|tries|retry|retries|reruns?|boots?"
    r"|submissions?|relaunch(?:es)?|times?|allocations?|saves?|jobs?|startups?|resumptions?|requeues?)"
)
_FEW = (
    r"(?:\d{1,3}|two|three|four|five|six|seven|eight|nine|ten|a dozen|twelve|fifteen|twenty|fifty"
    r"|a hundred)"
)
_COUNTED = rf"(?:{_FEW}|several|many|all|most|dozens of|hundreds of|a lot of|multiple|half of)"
_BREADTH = re.compile(
    rf"\b(?:every|each) (?:single )?(?:{_NODE}|rank|worker|pod|member)\b|"
    rf"\b{_COUNTED} (?:of (?:the |our |its )?)?(?:(?:\d{{1,6}}|\w{{1,20}}) ){{0,2}}(?:{_NODE}s|ranks"
    rf"|workers|pods|members"
    r"|processes|replicas|agents)\b"
)
_MOMENT = re.compile(
    r"\b(?:within|inside|in|over) (?:the |a |an |one |about |some |less than )?(?:same |single |very same "
    r"|few |couple of"
    rf" |{_FEW} )?(?:seconds?|minutes?|s|sec|min)\b(?: of (?:each other|one another))?"
    r"|\b(?:at|in) (?:the same|one|a single|the very same) (?:moment|second|minute|instant|time)\b"
    r"|\b(?:all )?at once\b|\bsimultaneous(?:ly)?\b|\bseconds apart\b|\ball at \d{1,2}:\d\d\b"
    r"|\bat \d{1,2}:\d\d(?::\d\d)?\b(?! and| each| every)"
)
#: Attempts that follow each other.
_FOLLOWS = re.compile(
    rf"\b(?:every|each|any) (?:single )?(?:[\w-]{{1,20}} )?{_TRY}\b|\bin a row\b|\bone after (?:an"
    rf"|the )?other\b|\bagain\b"
    rf"|\btwice\b|\balways\b|\b(?:second|third|fourth|fifth|{_FEW}|several|many|repeated|consecutive"
    rf"|successive) {_TRY}\b"
    r"|\brepeatedly\b|\bkeeps?\b|\b\d{1,4}(?:st|nd|rd|th)\b|\bone by one\b|(?<!seen )(?<!again )\bsince\b"
)
_INTERMITTENT = re.compile(
    r"\b(?:occasional(?:ly)?|sporadic(?:ally)?|sometimes|intermittent(?:ly)?|now and then|from time to time"
    r"|every now and (?:then|again)|once in a while|rarely|at times|flaky|usually|mostly|in most cases"
    r"|comes and goes|come and go|off and on|on and off again|not always|by chance"
    r"|infrequent(?:ly)?)\b"
    rf"|\b(?:most|many|some|half|the majority|nearly all|almost all) (?:of (?:the "
    rf"|our )?)?(?:other )?{_TRY} (?:\w{{1,12}} )?"
    r"(?:succeed|pass|go|went|work|come|came|are fine|run|ran|train|start|get|got|finish|complete)"
    rf"|\b(?:more|less) (?:often|likely|frequent(?:ly)?) (?:with|when|at|the|as|on)\b"
    r"|\bthe (?:more|larger|bigger) [^;.]{1,40}\bthe more (?:often|likely|frequent)"
)
_RATE = re.compile(
    rf"\b(?:one|two|three|a|\d{{1,3}}) {_TRY} (?:in|out of|of) (?:every )?({_FEW})\b"
    r"(?! (?:\w{1,16} )?(?:users|teams|projects|owners|tenants|people|groups|namespaces|accounts)\b)"
    rf"|(?<!every )(?<!each )\b(?:one|two|three|\d{{1,3}}) (?:in"
    rf"|out of) (?:every )?({_FEW}) (?:\w{{1,12}} )?{_TRY}\b"
    rf"|\b(?:one|1|two|2) in (?:every )?({_FEW})\b(?! (?:{_NODE}|rank|gpu|pod|worker|second|minute|hour|day"
    rf"|week|month|h\b|min\b|s\b))"
)
_RATIO = re.compile(
    rf"\b(\d{{1,4}}) ?(?:of|out of|/) ?(?:the |our |about |last )*(\d{{1,4}}) (?:\w{{1,12}} )?{_TRY}\b"
)
_BETWEEN = re.compile(
    rf"\b(?:the|one|a|its|next|last|another|second|third|some|other) (?:\w{{1,12}} )?{_TRY} (?:after (?:it"
    rf"|that|this)"
    r"|in between|between(?: them)?|before (?:it|that)|right after|since|of (?:it"
    r"|the same)) ?(?:\w{1,12} )?(?:pass|succe|work|went"
    r"|came|ran|train|was fine|was ok|got through|completed|finished|started)"
    rf"|\b(?:passed|succeeded|worked|ran|trained|came up|went through|completed) (?:\w{{1,12}} )?(?:once"
    rf"|twice|in between"
    rf"|between (?:them|these|the failures)|at times|now and then|{_FEW} times)\b"
    rf"|\b(?:re)?(?:start|launch|try|run)(?:ing|s|es)? (?:it )?(?:again )?(?:helps|helped|cures|gets past"
    rf"|works|comes up"
    r"|goes through)\b"
)
_WHEN = re.compile(
    r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|yesterday|today|then|later|next|in between"
    r"|the (?:second|third|day|night|week)"
    r"|last (?:night|week)|this morning|once|tonight"
    r"|(?:attempt|run|start|launch|try|restart|job) (?:no\.? )?\d{1,4})\b"
)
_CHANGED = re.compile(
    r"\bwith\b|\bwithout\b|\bonly\b|\bafter (?:a |the )?(?:chang|upgrad|downgrad|roll|repla)"
)
_FINE = re.compile(
    r"\b(?:fine|clean|sane|normal|correct|finite|ok|okay|pass(?:es|ed)?|good|works?|worked|agrees?|no nans?"
    r"|without (?:nan|error|trouble|inf)|not reproduc\w{1,5}|does not (?:fail|show|reproduce)"
    r"|did not (?:fail|show|reproduce)"
    r"|runs? through|ran through|gets? (?:past|through)|succeed\w{0,2}|right)\b"
)
_NOT_FINE = re.compile(
    r"\b(?:is|gives|gave|was|turns|goes|went|also|too|likewise) (?:\w{1,10} )?(?:nan|inf|wrong|bad)\b"
    r"|\bas well\b"
)
_CONTROL = re.compile(
    r"\b(?:same|this|that|these|those|identical|failing|very|exact|bad) (?:\w{1,20} )?(?:step|batch|batches"
    r"|job|sample|shard|input"
    r"|inputs|seed|data|script|test|kernel|iteration|microbatch|checkpoint|work|workload|run|matrix|tensor"
    r"|range|window)\b"
    r"|\bre-?(?:run|play|peat|comput|start|do)\w{0,3}\b|\b(?:repeated|replayed|recomputed|redone|rerun)\b"
)
_ELSEWHERE = re.compile(
    rf"\b(?:an?other|different|other|spare|second|neighbou?ring|healthy|fresh|known[- ]good|replacement"
    rf"|sister|new"
    rf"|good) (?:\w{{1,20}} )?(?:{_NODE}|gpu|card|device|chip|accelerator|rack)s?\b|\belsewhere\b"
    rf"|\bon its neighbou?r\b"
    r"|\bon (?:a |the )?(?:peer|sister|neighbou?r|spare)s?\b"
)
_CLEARS = re.compile(
    r"^(?:about |some |a few |many |several |\d{1,3} |two |three |four |five |six )?(?:weeks|months|years) ago\b|"
    r"\b(?:last|latest|most recent|newest|previous) (?:[\w'-]{1,20} ){0,6}(?:is|was|are|were|dates|came"
    r"|happened"
    r"|stems)? ?(?:back )?(?:from )?(?:about |over |more than |nearly |almost )?(?:\d{1,4}|an?|one|two"
    r"|three|four|five|six|seven"
    r"|eight|nine|ten|several|many|some|a few) (?:days?|weeks?|months?|years?|quarters?) (?:ago|old|back"
    r"|earlier)\b"
    r"|\b(?:has|have|had)(?:n't| not| never)? (?:changed|moved|risen|increased|grown|counted"
    r"|budged) (?:since|for|in)\b"
    r"|\b(?:has|have) (?:not|never) (?:changed|moved|risen|increased|grown|budged)\b|\bunchanged\b"
    r"|\bstands? still\b"
    r"|\b(?:held|holds|kept|keeps|shows?|stood|stands|been) (?:\w{1,20} ){0,4}(?:for"
    r"|since) (?:\w{1,10} )?(?:days|weeks|months|years)\b"
    r"|\b(?:no|nothing|none|zero) (?:[\w-]{1,20} ){0,4}(?:since|for|in) (?:its |the |last |many |several "
    r"|over |a |\d{1,3} )*(?:repair"
    r"|replacement|reset|reboot|spring|summer|autumn|fall|winter|january|february|march|april|may|june|july"
    r"|august|september"
    r"|october|november|december|days|weeks|months|years?|it was repaired|it came back)\b"
    r"|\blast (?:[\w'-]{1,20} ){0,3}(?:was |is |dates )?(?:from |in |of )?(?:january|february|march|april"
    r"|may|june|july|august"
    r"|september|october|november|december|spring|summer|autumn|winter|last year)\b"
    r"|\b(?:months|weeks|years) old\b|\bhas a clean (?:record|history)\b|\bclean history\b"
)
_KINDS = frozenset({"fp8", "bf16", "fp16", "fp32", "nccl", "gloo", "mpi", "ucc"})
#: One option and its value: as set on a command line, as a named degree, or switched.
_ASSIGNED = re.compile(r"(?<![\w-])-{0,2}([a-z][a-z0-9_.-]{1,40}) ?[=:] ?([a-z0-9][\w.-]{0,30})\b(?<!\.)")
_DEGREE = re.compile(
    r"\b((?:tensor|pipeline|data|context|expert|sequence|model)[ -]parallel(?:ism|ity)?(?: size| degree)?"
    r"|tp|pp|ep|cp|micro-?batch(?: size)?"
    r"|batch(?: size)?|context(?: length)?|sequence(?: length)?|zero(?: stage)?|stage|degree"
    r"|bucket(?: size)?|prefetch(?: factor)?"
    r"|num_workers|precision|backend|loader workers|chunk(?: size)?|block size|page size|cores|threads"
    r"|slots|cpus)"
    r"(?: of| at| set to| to| size| =)? (\d{1,7}|fp8|bf16|fp16|fp32|nccl|gloo|mpi|ucc)\b"
)
_DEGREE_AFTER = re.compile(
    r"\b(\d{1,5}) ((?:loader |data |data[- ]loader |dataloader )workers|workers (?:a|per|each) (?:node|host"
    r"|machine|gpu|rank)|threads"
    r"|slots|cpus|cores|micro-?batches|stages|buckets|channels|processes (?:a|per) (?:node|host|machine"
    r"|gpu))\b"
)
_SWITCH = re.compile(
    r"\b(?:the |option |flag |setting )?([a-z][\w-]{2,40}) (?:is |are |was |were |set |switched "
    r"|turned )?(on|off"
    r"|enabled|disabled)\b"
)
_FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]{2,40})\b")
_BARE = re.compile(
    rf"\b(?:with|at|using|for|on) (?:only )?(\d{{1,5}}|fp8|bf16|fp16|fp32|nccl|gloo|mpi"
    rf"|ucc)\b(?! (?:{_NODE}|rank|gpu|member|pod|of|min|h\b"
    rf"|s\b))"
)
_WITHOUT = re.compile(
    r"\bwithout (?:it|the (?:flag|option|setting|switch)|that (?:flag|option|setting)|--?\w"
    r"|[a-z]\w{0,30}_\w)"
    r"|\bwhen (?:it is )?(?:off|unset|removed|left out|disabled)|\bonce (?:it is )?(?:removed|unset)"
    r"|\bthe default\b"
    r"|\bleaving (?:it|the flag|the option) out\b|\bunset\b"
)
_UNIVERSAL = re.compile(
    rf"\b(?:every|all|each|any|always|whenever|never|none|no)\b|\b(\d{{1,4}}) ?(?:of|out of"
    rf"|/) ?(?:the )?\1\b"
    rf"|\b({_FEW}) (?:of|out of) (?:the )?\2\b"
)
_NEVER = re.compile(
    r"\bnever\b(?! (?:form|start|came|come|work|succe|connect|got|gets|reach|pass|finish))|\bnone\b"
)
_CURED = re.compile(
    r"\b(?:with|once|when|after|if|naming|setting|giving|using|pinning|passing) (?:an? |the )?(?:explicit "
    r"|fixed |other |right |named )?(?:\w{1,30} )?"
    r"(?:interface|address|port|ip|endpoint|hostname|rdzv[-_]id|rendezvous id|network device"
    r"|[a-z]{2,12}_[a-z_]{2,40}=\S{1,30})\b"
    rf"|\b(?:plain|vanilla|(?:the )?default) (?!{_NODE}|pool|partition|queue|image)\w{{2,20}}\b"
)
#: An attempt as such, which is no word of success: "every start", "five of five runs".
_NOUN_OF_TRY = re.compile(
    rf"\b(?:every|each|all|any|of|at|no|first|second|third|fourth|of {_FEW}) (?:single |other "
    rf"|the )?{_TRY}\b"
)
_COMES_TOGETHER = re.compile(
    r"\b(?:connects?|connected|forms?|formed|converges?|comes? together|assembles?|gets? going)\b"
)
_SAME_PROGRAM = re.compile(
    r"\b(?:same|this|the|identical|our) (?:\w{1,12} )?(?:program|code|script|job|image|container|binary|run"
    r"|model|commit)\b"
)
#: Models and generations of accelerators.
_MODEL = re.compile(
    r"\b([abhlvpt]\d{2,3}[a-z]?|gb\d{3}|mi\d{2,3}[a-z]?|trn\d|inf\d|(?:tpu )?v\d[ep]|l40s|rtx ?\w{3,6}"
    r"|sm_?\d{2,3}|gaudi ?\d|hl-?\d{3}"
    r"|max ?1550|910[bc]?|ampere|hopper|blackwell|ada|volta|turing|gfx\d{3}[a-z]?)(?=s?\b)"
)
_PAIR = re.compile(
    r"\bpair(?:s|ing|wise|ed)?\b|\bpartners?\b|\b(?:any|every|all) (?:two|couple)\b|\btwo by two\b"
    r"|\btwo-node (?:tests?|runs?)\b"
    r"|\bcombinations?\b|\bcounterparts?\b"
)
_HOST = (
    r"(?:(?=[a-z-]{0,30}\d)[a-z][a-z0-9]{0,15}(?:-[a-z0-9]{1,12}){0,6}|(?:this|that|one) (?:\w{1,12} )?"
    + _NODE
    + r"|it)"
)
_CONTRAST = re.compile(
    rf"\b(?:with|without|hold|holds|held|include[sd]?|including|involv\w{{2,3}}|contain\w{{0,3}}|having|touch\w{{0,3}}"
    rf"|where) {_HOST}\b"
    rf"|\bunless (?:one|either)?[^;.]{{0,24}}\b(?:is|includes) {_HOST}|\b{_HOST} (?:fails|hangs|stalls"
    rf"|times out|drops|is slow|breaks"
    rf"|never connects|cannot connect) (?:with|to|against|towards) (?:each|every|any|all|whichever"
    rf"|whatever)\b"
    rf"|\b(?:partners?|peers?) of {_HOST}\b"
)
_THE_REST = re.compile(
    rf"\bwithout\b|\bonly\b|\bunless\b|\b(?:the )?(?:rest|remaining|others?|remainder)\b"
    rf"|\bleav\w{{1,3}} (?:it|{_HOST})? ?out\b|\bexclud\w{{1,3}}\b"
    rf"|\bnot (?:including|involving)\b|\bexcept\b|\b(?:every|each|all) (?:its )?partners?\b"
    rf"|\bwhichever (?:the )?partner\b|\bamong (?:them|each)"
)
_CONTAINERS = re.compile(
    r"\b(?:new|fresh|second|third|fourth|more|other|recreated|successive|\d{1,3}|two|three|four|five"
    r"|several|many|every|each)"
    r" (?:new |fresh )?(?:containers?|pods?)\b|\bcontainers? after containers?\b|\bpods? after pods?\b"
    r"|\b(?:restart|recreat|replac|renew)\w{0,3} (?:of )?(?:the |its )?(?:containers?|pods?)\b"
)
_IN_VAIN = re.compile(
    r"\bfail\w{0,3}\b|\bin vain\b|\b(?:did|does|do|has|have)(?: not|n't) (?:help|free|change|mend|clear"
    r"|release)|\bno (?:help|use|difference|change)\b"
    r"|\balike\b|\bthe same\b|\bstill\b|\bagain\b|\bmeets? (?:it|the)\b|\b(?:end|die|hit|see|saw)s? (?:so"
    r"|it|the same)\b|\btoo\b"
)
_NO_OWNER = re.compile(
    r"\b(?:finds?|found|shows?|lists?|sees?|with|has|is|says?) (?:no|nothing|none|nobody)(?: (?:such|of our"
    r"|running|own|live)| \w{1,10})?"
    r"(?: process(?:es)?| pid| owner| user| holder)?\b|\bno (?:such )?process(?:es)?\b|\bno (?:owner"
    r"|holder)\b"
    r"|\bnone of our(?:s| processes)\b|\bnobody(?:'s| holds| owns)\b|\bdoes not exist\b"
    r"|\bno process of ours\b"
)
_SIBLING = re.compile(
    rf"\b(?:sibling|other|another|second|neighbou?r\w{{0,3}}|co-?located) (?:\w{{1,12}} )?(?:jobs?|runs?"
    rf"|launch(?:es)?|trainings?"
    rf"|experiments?|sweeps?)\b[^;.]{{0,40}}\bsame (?:\w{{1,12}} )?{_NODE}s?\b"
)
_SIBLING_ENDS = re.compile(r"\b(?:end|exit|stop|start|finish|quit|terminat|shut|launch|kill|come)\w{0,4}\b")
_DATED = re.compile(
    r"\bsince (?:the |a |an |last |this |our |its |\w{1,12}'s )?(?:[\w'-]{1,20} ){0,5}(?:change|upgrade"
    r"|update|rollout|roll-out|maintenance|migration|patch"
    r"|switch|deploy\w{0,4}|image|release|version|provisioning|install\w{0,6}|rotat\w{1,3}|renew\w{1,3}"
    r"|hardening|reconfigur\w{1,6}|kernel|driver|firmware"
    r"|policy|firewall|template|playbook)\b"
    r"|\bsince [^;.]{1,60}\b(?:was|were|got|has been) (?:\w{1,10} )?(?:changed|upgraded|updated|rotated"
    r"|replaced|renewed|switched|moved|enabled|disabled|patched"
    r"|rolled out|installed|migrated|introduced|reconfigured|hardened)\b"
    r"|\bafter (?:the |a )?(?:[\w'-]{1,20} ){0,4}(?:change|upgrade|update|rollout|roll-out|maintenance"
    r"|migration|patch|rotation)\b"
)
_ALL_OF_THEM = re.compile(
    rf"\b(?:all|every|each|any|no|whichever) (?:of (?:the )?)?(?:\w{{1,12}} )?(?:{_NODE}s?|tenants?|users?"
    rf"|teams?|namespaces?|projects?)\b|\beverywhere\b"
    r"|\b(?:cluster|pool|fleet|site)[- ]?wide\b|\beverybody\b|\beveryone\b(?! else)|\ball (?:machines|nodes"
    r"|hosts|vms)\b|\b(?:whole|entire) (?:pool|cluster|fleet)\b"
)
_EVERY_USER = re.compile(
    r"\b(?:all|every|each|any|no) (?:of (?:the )?)?(?:\w{1,12} )?(?:tenants?|users?|teams?|namespaces?"
    r"|projects?|jobs?)\b|\beverybody\b|\beveryone\b(?! else)"
    r"|\bnobody\b|\bwhole (?:pool|cluster|fleet)\b"
)
_NEW_NODES = re.compile(
    rf"\b(?:all|every|each|any) (?:of the )?(?:new|fresh|newly|freshly|just|added|joined|young"
    rf"|recently)[ -](?:\w{{1,12}}[ -]){{0,2}}{_NODE}s?\b"
    rf"|\b(?:all|every|each|any) (?:\w{{1,12}} )?{_NODE}s? (?:that|which) (?:has |have |was |were |is |are "
    rf"|had )?(?:been )?(?:joined|joins?|came|comes?|added"
    r"|booted|boots|provisioned|installed|set up|built|created)\b"
)
_LARGE = re.compile(
    r"\b(?:every|each|all|any|only) (?:\w{1,12} )?(?:large|big|wide|larger|bigger)\w{0,2}\b|\b(?:above"
    r"|beyond|over|more than|from) \d{1,5} (?:\w{1,10} )?"
    rf"(?:{_NODE}s|ranks|gpus|workers)\b"
)
_SMALL_PASS = re.compile(
    rf"\b(?:any|every|all|each) (?:two|pair|couple)\b|\b(?:two|2|pairs of) (?:single )?{_NODE}s (?:alone "
    rf"|by themselves )?(?:pass|work|are fine|run|connect)"
    rf"|\bpairs (?:alone )?(?:pass|work|are fine|run|connect)\b|\bsmall(?:er)? (?:\w{{1,10}} )?(?:pass|work"
    rf"|are fine|run|connect)"
)
_SIZE_NEW = re.compile(
    rf"\bfirst (?:\w{{1,12}} )?{_TRY} (?:at|with|on|of|ever|that) (?:this size|that size|\d{{3,6}}|such"
    rf"|so many|(?:\w{{1,12}} )?scale)"
    r"|\bnever (?:tried|run|ran|started|used) (?:at|with|on)? ?(?:this|that|such|so many|\d)|\b(?:size"
    r"|scale) (?:is |was )?never tried\b"
    r"|\blargest (?:\w{1,12} )?(?:yet|so far|ever)\b|\bdoubled\b|\bscaled (?:up )?(?:from|to) \d"
)
_AT_PLACE = re.compile(
    r"\b(?:at|to|past|after|beyond|than|in|on|reached|reaches|counter|number|step|iteration|iter|batch"
    r"|sample|epoch|seqnum|sequence|index|shard"
    r"|record|block|offset|sample)s?[ #:=]{1,3}(?:step |iteration |no\.? )?(\d{2,12})\b(?! ?(?:%|of\b"
    r"|nodes?|hosts?|ranks?|gpus?|workers?|machines?"
    r"|h\b|hours?|days?|weeks?|times|s\b|sec|ms\b|milli|min))"
)
_ORDINAL = re.compile(
    rf"\b(?:second|third|fourth|fifth|sixth|\d{{1,3}}(?:nd|rd|th|st)|{_FEW}|last|both|earlier|previous|each"
    rf"|every|all|first|other) (?:\w{{1,12}} )?{_TRY}\b"
    r"|\bagain\b|\btwice\b|\bboth\b|\bonce more\b|\balso\b|\btoo\b|\bas before\b|\blast time\b"
)
_IDLE_PATTERN = re.compile(
    r"\b(?:epoch|evaluation|validation|eval) (?:end|boundary|turn|change|start|rollover)s?\b|"
    r"\b(?:end|start|beginning|close|turn|boundary) of (?:\w{1,12} ){0,2}(?:epoch|evaluation|validation"
    r"|save|pass|phase|stage|warm-?up)\w{0,3}\b"
    r"|\b(?:first|at|in|during|before|after|into|on|entering|the) (?:\w{1,12} ){0,2}(?:evaluation"
    r"|validation|save|saving|checkpointing|checkpoint save|epoch"
    r"|boundary|barrier|warm-?up|compile|compilation|first batch|last batch|eval)\b"
)

#: "the other hosts never" says where it does not fail.
_NEVER_ELSEWHERE = re.compile(
    rf"^(?:and )?(?:the |all |any )?(?:other|others|remaining|rest of the"
    rf"|neighbou?ring)(?: \w{{1,20}})? ?(?:{_NODE}s?)?,? (?:have |has |had |do |did |does )?"
    r"(?:never|not|none)(?: (?:do|did|had|have|show|shows|showed|see|saw)(?: it| that| this| any)?)?$"
)
#: What is said of the surroundings and not of failures.
_AS_ALWAYS = re.compile(r"\b(?:as|like) (?:always|ever|usual|every time|before)\b")
#: "no launch has ever got past this" is told of success and means that every start fails.
_NO_TRY = re.compile(
    rf"\b(?:no|not a single|not one|none of the) (?:single )?{_TRY} (?:has |have |had )?(?:ever "
    rf"|yet )?(?:got|gets?|gotten|connect(?:s|ed)?"
    r"|c[ao]mes?|came|pass(?:es|ed)?|succeed(?:s|ed)?|start(?:s|ed)?|work(?:s|ed)?|survive[sd]?|made|makes?"
    r"|went|goes|reach(?:es|ed)?)"
    r"(?: (?:past|through|beyond|up|together|it|yet))?"
)


@dataclass(frozen=True, slots=True)
class Tried:
    """What a sentence says of attempts. False and () = it does not say so."""

    at_once: bool = False
    intermittent: bool = False
    success_between: bool = False
    clean_control: bool = False
    setting_differs: bool = False
    class_differs: bool = False
    pair_node: bool = False
    in_vain: bool = False
    sibling: bool = False
    standing: bool = False
    new_nodes: bool = False
    only_large: bool = False
    size_new: bool = False
    at_boundary: bool = False
    same_place: bool = False
    places: tuple[int, ...] = ()


def clears(clause: str) -> bool:
    """Whether a clause only says how long ago something was, or that nothing came since."""
    return _CLEARS.search(clause) is not None


#: "3 starts on other nodes": a number makes attempts of it, not something that starts well.
_COUNTED_TRIES = re.compile(
    r"\b(\d{1,4}|two|three|four|five|six|several|many|all) (?:starts|launches) (?=on\b|with\b|in\b|at\b)"
)


def in_plain_words(text: str) -> str:
    """A sentence where "no launch has ever got past it" is told as a failure of every start."""
    return _NO_TRY.sub("every start fails", _COUNTED_TRIES.sub(r"\1 attempts ", _AS_ALWAYS.sub(" ", text)))


def never_elsewhere(clause: str) -> bool:
    """Whether a clause only says that other machines never show it."""
    return _NEVER_ELSEWHERE.search(clause) is not None


def read(text: str, clauses: Sequence[str]) -> Tried:
    """Claims about attempts in a sentence in small letters, cut into its clauses. Never raises."""
    follows = _FOLLOWS.search(text) is not None
    between = _passed_between(clauses)
    all_of_them = _ALL_OF_THEM.search(text) is not None
    dated = _DATED.search(text) is not None
    places = _places(text)
    new_nodes = dated and _NEW_NODES.search(text) is not None
    return Tried(
        at_once=not follows and _MOMENT.search(text) is not None and _BREADTH.search(text) is not None,
        intermittent=_is_intermittent(text),
        success_between=between,
        clean_control=any(_is_clean_control(clause) for clause in clauses),
        setting_differs=_setting_differs(clauses) or (";" in text and _setting_differs(text.split(";"))),
        class_differs=_class_differs(clauses),
        pair_node=_pair_node(text),
        in_vain=(_CONTAINERS.search(text) is not None and _IN_VAIN.search(text) is not None)
        or _NO_OWNER.search(text) is not None,
        sibling=any(_SIBLING.search(clause) and _SIBLING_ENDS.search(clause) for clause in clauses),
        standing=dated and all_of_them and _EVERY_USER.search(text) is not None,
        new_nodes=new_nodes,
        only_large=_LARGE.search(text) is not None and _SMALL_PASS.search(text) is not None,
        size_new=_SIZE_NEW.search(text) is not None,
        at_boundary=_IDLE_PATTERN.search(text) is not None,
        same_place=len(places) > len(set(places)),
        places=tuple(dict.fromkeys(places)),
    )


def _passed_between(clauses: Sequence[str]) -> bool:
    """Whether an attempt succeeded between the failures with nothing changed."""
    if any(_BETWEEN.search(clause) and not _CHANGED.search(clause) for clause in clauses):
        return True
    has_failed = passed = False
    for clause in clauses:
        if fails(clause):
            if passed:
                return True
            has_failed = True
        elif has_failed and _WHEN.search(clause) and passes(clause):
            passed = not _CHANGED.search(clause) and not _ELSEWHERE.search(clause)
    return False


def _is_intermittent(text: str) -> bool:
    if _INTERMITTENT.search(text):
        return True
    if any(int(some) < int(whole) for some, whole in _RATIO.findall(text)):
        return True
    return _RATE.search(text) is not None and _RATIO.search(text) is None and not _is_n_of_n(text)


def _is_n_of_n(text: str) -> bool:
    return re.search(rf"\b(\d{{1,4}}|{_FEW}) ?(?:of|out of|/|in) ?(?:the )?\1\b", text) is not None


def _is_clean_control(clause: str) -> bool:
    """Whether the same work, done again on another machine, came out well."""
    return (
        _CONTROL.search(clause) is not None
        and _ELSEWHERE.search(clause) is not None
        and _FINE.search(clause) is not None
        and _NOT_FINE.search(clause) is None
        and not fails(clause)
    )


def _are_good(clauses: Sequence[str]) -> list[bool]:
    """Which clauses tell of success. One that only says "never" says the opposite of the others."""
    told = [_tells(clause) for clause in clauses]
    never_fails = False in told or True not in told
    return [never_fails if good is None else good for good in told]


def _tells(clause: str) -> bool | None:
    if _NEVER.search(clause):
        return None
    clause = _NOUN_OF_TRY.sub(" ", clause)
    return not fails(clause) and (passes(clause) or _COMES_TOGETHER.search(clause) is not None)


def _options(clause: str) -> dict[str, str]:
    found = dict(_ASSIGNED.findall(clause))
    found |= dict(_DEGREE.findall(clause))
    found |= {name: value for value, name in _DEGREE_AFTER.findall(clause)}
    found |= dict(_SWITCH.findall(clause))
    found |= {name: "on" for name in _FLAG.findall(clause) if name not in found}
    return {name.strip("-"): value for name, value in found.items()}


def _setting_differs(clauses: Sequence[str]) -> bool:
    """Whether it fails with one value of an option and passes with another, and with nothing else changed."""
    failing: dict[str, str] = {}
    passing: dict[str, str] = {}
    universal = without = cured = False
    bare: set[str] = set()
    for clause, is_good in zip(clauses, _are_good(clauses), strict=True):
        options = _options(clause)
        if is_good:
            passing |= options
            without |= _WITHOUT.search(clause) is not None
            cured |= _CURED.search(clause) is not None and len(clauses) > 1
            bare |= set(_BARE.findall(clause))
        else:
            failing |= options
        universal |= _UNIVERSAL.search(clause) is not None
    if not universal:
        return False
    if cured:
        return True
    if any(name in passing and passing[name] != value for name, value in failing.items()):
        return True
    return bool(failing) and (
        without or any(bare - {value} and (value.isdigit() or value in _KINDS) for value in failing.values())
    )


def _class_differs(clauses: Sequence[str]) -> bool:
    """Whether it fails on one model of accelerator and passes on another."""
    failing: set[str] = set()
    passing: set[str] = set()
    universal = same_program = False
    for clause, is_good in zip(clauses, _are_good(clauses), strict=True):
        models = set(_MODEL.findall(clause))
        if models:
            (passing if is_good else failing).update(models)
            same_program |= _SAME_PROGRAM.search(clause) is not None
        elif not is_good:
            universal |= _UNIVERSAL.search(clause) is not None
    told = bool(failing - passing) or (universal and same_program and not failing)
    return told and bool(passing - failing)


def _pair_node(text: str) -> bool:
    """Whether pairs fail where one machine takes part, and pass where it does not."""
    if _PAIR.search(text) is None or _CONTRAST.search(text) is None:
        return False
    return _THE_REST.search(text) is not None or (fails(text) and _FINE.search(text) is not None)


def _places(text: str) -> list[int]:
    return [int(number) for number in _AT_PLACE.findall(text)[:MAX_PLACES]] if _ORDINAL.search(text) else []
