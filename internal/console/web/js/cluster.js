// Cluster: the nodes, which one leads, and how far the others are behind it, by the HTTP API of
// the node that serves the page.

import { html, useState } from '../vendor/preact-htm.js';
import { ask } from './api.js';
import { count } from './bytes.js';
import { Confirm, Failed, useConnection, usePoll } from './ui.js';

const every = 3000; // ms

// consoleOf is the address of a node's console, as this browser may reach it: a node that listens
// on each address is reached at that of its cluster port. Empty: it has none.
function consoleOf(node) {
  if (!node?.console) return '';
  const split = (address) => [address.slice(0, address.lastIndexOf(':')), address.slice(address.lastIndexOf(':') + 1)];
  const [host, port] = split(node.console);
  const named = ['', '0.0.0.0', '[::]'].includes(host) ? split(node.address)[0] : host;
  return `${location.protocol}//${named}:${port}/console/#/cluster`;
}

const roles = { receiving: 'gets all data', unreachable: 'does not answer', learner: 'has no vote yet', candidate: 'knows no leader' };

function role(node) {
  if (node.receiveBytes > 0) return `gets all data, ${Math.floor((100 * (node.receivedBytes || 0)) / node.receiveBytes)} %`;
  return roles[node.role] || node.role;
}

export function Cluster() {
  const { phase } = useConnection();
  const [found, setFound] = useState(null);
  const [alone, setAlone] = useState(false);
  const [problem, setProblem] = useState(null);
  const [said, setSaid] = useState('');
  const [asking, setAsking] = useState(''); // the node that is to lead
  const load = async () => {
    try {
      setFound(await ask('GET', 'cluster'));
      setAlone(false);
      setProblem(null);
    } catch (err) {
      setAlone(err.status === 404);
      setProblem(err.status === 404 ? null : err);
    }
  };
  usePoll(load, every, [phase]);
  const transfer = async (sure) => {
    const to = asking;
    setAsking('');
    if (!sure) return;
    setSaid(`Node ${to} is to lead …`);
    try {
      await ask('POST', 'cluster/transfer', {}, { to });
      setSaid(`Node ${to} leads now.`);
      await load();
    } catch (err) {
      setSaid('');
      setProblem(err);
    }
  };
  const leader = found?.nodes.find((n) => n.name === found.leader);
  const there = consoleOf(leader);
  return html`<div>
    <h1>Cluster</h1>
    ${alone && html`<p class="lone">This server is by itself, and no node of a cluster.</p>`}
    <${Failed} what="The cluster does not say how it is, or does not do what is asked" err=${problem} />
    <p class="muted" role="status">${said}</p>
    ${found && !alone && html`
      <p class=${`verdict ${found.problem ? (found.quorum ? 'warn' : 'bad') : 'good'}`} role="status"><span class="lamp" aria-hidden="true"></span>${found.problem ? `${found.problem[0].toUpperCase()}${found.problem.slice(1)}.` : `Node ${found.leader} leads, and all nodes answer.`}</p>
      ${found.clocks?.map((line) => html`<p class="verdict warn" role="status"><span class="lamp" aria-hidden="true"></span>${line}</p>`)}
      ${found.leader && found.leader !== found.node && html`<p>This page is that of node ${found.node}, which does not lead: keys, clients and topics are on ${there ? html`<a href=${there}>the console of node ${found.leader}</a>` : `node ${found.leader}, which has no console (--admin)`}.</p>`}
      <table class="keys nodes">
        <thead><tr><th scope="col">Node</th><th scope="col">Role</th><th scope="col">Behind</th><th scope="col">Term</th><th scope="col">Address</th><th scope="col"><span class="unseen">Transfer</span></th></tr></thead>
        <tbody>${found.nodes.map((n) => html`<tr key=${n.name}>
          <td class="key">${consoleOf(n) ? html`<a href=${consoleOf(n)}>${n.name}</a>` : n.name}${n.name === found.node && html` <span class="tag">this node</span>`}</td>
          <td class="left">${role(n)}</td>
          <td class="left">${n.name === found.leader ? '' : html`${count(n.lag)} entries<span class="narrow"> behind</span>`}</td>
          <td class="left"><span class="narrow">term </span>${count(n.term)}</td>
          <td class="value"><bdi>${n.address}</bdi></td>
          <td class="act">${n.role === 'follower' && html`<button type="button" onClick=${() => setAsking(n.name)}>Let ${n.name} lead</button>`}</td>
        </tr>`)}</tbody>
      </table>
      <p class="muted small">A node that is behind by an entry lacks one batch of changes, which the quorum has.</p>`}
    ${asking && html`<${Confirm} question=${`Let node ${asking} lead? Clients are disconnected, and find it at whichever node they connect to.`} action="Let it lead" onClose=${transfer} />`}
  </div>`;
}
