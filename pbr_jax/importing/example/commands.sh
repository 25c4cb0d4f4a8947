# What to do with a table of your own, here with made-up support tickets. Run it as it stands:
#     sh commands.sh
set -e

# 1. Import. Each flag names a column of the table; the rows before a ticket become its history.
#    Prints what was understood, and writes the folder `mine`, all of which is text that you may edit.
pbr-jax data import tickets.csv --user customer --time created --input question --output reply \
    --id ticket --category topic --task task.toml --out mine

# 2. Validate. Reads every record, and again whenever you have edited a file.
pbr-jax data validate --benchmark.name own --benchmark.root mine

# 3. Check. Do earlier tickets help to answer the next one? Prints a verdict, and writes
#    checks/mine/report.html for the browser. It takes about as many minutes as it is given.
pbr-jax check mine --out checks/mine --minutes 5

# 4. Run one system with answers, and read a few.
pbr-jax run bm25 --benchmark.name own --benchmark.root mine --limit 12 --out runs/bm25
pbr-jax examples runs/bm25 --count 2
