# What headrace needs and what seldom changes. Built by `make image`, which makes the context, without a registry.
FROM scratch
# Debian: Python, Java, HAProxy, tini (container_image.py says which packages).
ADD root.tar /
# requirements/image.txt; and ZooKeeper and HDFS (warehouse/jars).
COPY packages/ /usr/local/lib/python3.11/dist-packages/
COPY jars/ /opt/headrace/jars/
# Compiled here, since the user who runs it may not write there.
RUN python3 -m compileall -q /usr/local/lib/python3.11/dist-packages \
 && printf 'headrace:x:1000:1000:headrace:/var/lib/headrace:/bin/sh\n' >> /etc/passwd \
 && printf 'headrace:x:1000:\n' >> /etc/group \
 && install -d -o 1000 -g 1000 /var/lib/headrace
