run a.py --no
