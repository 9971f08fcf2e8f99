"""What the front door says, in one sentence, when it cannot go on."""


class FrontDoorError(Exception):
    """Something that a person has to know or do; its text is one sentence, shown without traceback."""
