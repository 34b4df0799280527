"""What a reader's folder holds."""

CORPUS = "corpus"  # inputs that ran code that none before did
DEFECTS = "defects"  # the smallest input of each, and its traceback
ENDS = "ends"  # inputs that ended the process
COUNTS = "counts"
WORDS = "words"
LOG = "log"
